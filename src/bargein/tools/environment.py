"""The environment of commands: ours without secrets. Pure.

Variables that look like a secret by name or by value are left out unless allowed by name. A command
that needs a secret must be given it on purpose.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

_SECRET_WORDS = {
    *("KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD"),
    *("PASSPHRASE", "PASS", "PWD", "PAT", "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH", "DSN"),
    *("BEARER", "COOKIE", "COOKIES", "PRIVATE", "WEBHOOK", "PW", "SSHPASS"),
}
_SECRET_ENDS = ("APIKEY", "ACCESSKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS")
_KNOWN = (
    *("AWS_*", "AZURE_*", "OPENAI_*", "ANTHROPIC_*", "BARGEIN_*", "GEMINI_*", "MISTRAL_*"),
    *("COHERE_*", "GROQ_*", "OPENROUTER_*", "DEEPSEEK_*", "XAI_*", "HUGGING_FACE_*", "KUBECONFIG"),
    *(
        "NETRC",
        "PGPASSFILE",
        "GOOGLE_APPLICATION_*",
        "VAULT_*",
        "*_CONNECTION_STRING",
        "OTEL_EXPORTER_OTLP_*HEADERS",
    ),
)
_HARMLESS = {"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "GPG_KEY", "KEYTIMEOUT"}
# A user name of twenty or more characters is most likely a token.
_URL_WITH_PASSWORD = re.compile(
    r"^[a-z][a-z0-9+.-]*://(?:[^/\s:@]*:[^/\s@]+|[^/\s:@]{20,})@", re.IGNORECASE
)
_HEADER = re.compile(r"^(?:authorization:\s*\S|bearer\s+\S{8,}$|basic\s+\S{8,}$)", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"^(?:sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|hf_\w{20,}|npm_\w{20,}|pypi-\w{20,}|ey[\w-]{10,}\.ey[\w-]+\."
    r"|-----BEGIN [A-Z ]*PRIVATE KEY)"
)


def scrubbed(environment: Mapping[str, str], allow: Iterable[str] = ()) -> dict[str, str]:
    """Returns the environment without secrets. Keeps names in `allow`; `*` matches anything."""
    allowed = tuple(allow)
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in allowed) or not is_secret(name, value)
    }


def is_secret(name: str, value: str) -> bool:
    upper = name.upper()
    if upper in _HARMLESS:
        return False
    if any(fnmatchcase(upper, pattern) for pattern in _KNOWN):
        return True
    words = upper.split("_")
    if not _SECRET_WORDS.isdisjoint(words) or any(word.endswith(_SECRET_ENDS) for word in words):
        return True
    return any(each.match(value) for each in (_URL_WITH_PASSWORD, _SECRET_VALUE, _HEADER))
