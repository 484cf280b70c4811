"""The operation that searches the text of all sessions that the caller may see.

The store searches those sessions only, so other people's text neither shows nor uses up the limit.
Each hit is checked again before it is returned, because a share may end while the store reads.
"""

from bargein.contracts.store import Found, SessionHead
from bargein.server.access import Principal
from bargein.server.gateway import Gateway
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup
from bargein.server.problems import Code, Problem
from bargein.server.shapes import Hit, Hits

HITS = 50
WORDS_CHARACTERS_MAX = 200


@lookup(
    "/search",
    replies={200: Hits},
    query=(
        Parameter("words", "string", "the words to find; each matches the beginning of a word"),
        Parameter("limit", "integer", f"how many at most; {HITS} unless given"),
    ),
)
async def search(request: ApiRequest) -> Reply:
    """Search the sessions that the caller may see, the newest hit first. A text matches if it
    has all the words; neither case nor accents matter."""
    words = request.query.get("words", "")
    if not words.strip() or len(words) > WORDS_CHARACTERS_MAX:
        raise Problem(
            Code.BAD_REQUEST,
            f"?words= has {len(words)} characters; give a few words, {WORDS_CHARACTERS_MAX} "
            "characters at most",
        )
    gateway, principal = request.gateway, request.principal
    limit = request.number("limit", default=HITS, least=1, most=gateway.limits.page_max)
    roots = gateway.access.readable(principal)
    async with gateway.heavy(principal.name):
        found = await gateway.engine.store.search(words, limit=limit, roots=roots)
    hits = await _hits(gateway, principal, found)
    gateway.check_token(principal)
    return Reply(200, Hits(hits))


async def _hits(gateway: Gateway, principal: Principal, found: list[Found]) -> tuple[Hit, ...]:
    heads: dict[str, SessionHead | None] = {}

    async def head(session: str) -> SessionHead | None:
        if session not in heads:
            heads[session] = await gateway.engine.store.head(session)
        return heads[session]

    hits = []
    for each in found:
        itself = await head(each.session)
        root = await head(itself.root) if itself is not None else None
        if root is not None:
            hits.append(Hit(each.session, root.id, root.title, each.seq, each.excerpt))
    return tuple(hit for hit in hits if gateway.access.right(principal, hit.root) is not None)


SEARCH_OPERATIONS: tuple[Operation, ...] = (search,)
