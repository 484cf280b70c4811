"""What is found: lists, unfinished sessions, search; deleting; backups."""

from bargein.contracts.store import Store, commit_one
from bargein.errors import UserError
from bargein.testing.store_conformance.commits import ONE_OF_EACH
from bargein.testing.store_conformance.scene import (
    Checks,
    Scene,
    claimed,
    equal,
    key,
    log,
    looked,
    made,
    made_under,
    refused,
    said,
    step,
    true,
    written,
)

LIST_CHECKS = Checks()
SEARCH_CHECKS = Checks()
"""A store must find the same, however it looks for it."""


@LIST_CHECKS.of_store
async def sessions_come_last_updated_first_and_by_pages(store: Store) -> None:
    for number in range(9):
        await made(store, f"s{number}", at=float(number // 3))
    await commit_one(store, step(await looked(store, "s0"), said(1), at=9.0))
    names = ["s0", "s8", "s7", "s6", "s5", "s4", "s3", "s2", "s1"]
    equal([one.id for one in await store.sessions()], names)
    seen: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.sessions(limit=2, before=before):
        true(len(page) <= 2, f"a page of {len(page)}")
        seen += [one.id for one in page]
        before = page[-1].updated_at, page[-1].id
        true(len(seen) <= len(names), f"pages repeat: {seen}")
    equal(seen, names)
    equal(await store.sessions(limit=1), [await looked(store, "s0")])


@LIST_CHECKS.of_store
async def sessions_under_a_root_are_listed_apart(store: Store) -> None:
    root = await made(store, "root")
    await made(store, "other")
    for name in ("k1", "k2"):
        await made_under(store, root, name, at=1.0)
    equal([one.id for one in await store.sessions()], ["root", "other"])
    under = await store.sessions(under="root")
    equal([one.id for one in under], ["k2", "k1"])
    equal({(one.epoch, one.owner) for one in under}, {(root.epoch, root.owner)})
    equal(await store.sessions(under="other"), [])


@LIST_CHECKS.of_store
async def unfinished_sessions_are_found_by_their_roots(store: Store) -> None:
    for name in ("d", "b", "a", "c"):
        await commit_one(store, step(await made(store, name), said(1), unfinished=name != "c"))
    child = await made_under(store, await looked(store, "c"), "x")
    equal(await store.unfinished(), ["a", "b", "d"])
    await commit_one(store, step(child, said(1), unfinished=True))
    equal(await store.unfinished(), ["a", "b", "c", "d"])
    equal(await store.unfinished(limit=2), ["a", "b"])
    equal(await store.unfinished(limit=2, after="b"), ["c", "d"])
    await commit_one(store, step(await looked(store, "a"), said(2)))
    await store.delete("b")
    await store.delete("x")
    equal(await store.unfinished(), ["d"])


# --- deleting


@LIST_CHECKS.of_store
async def a_deleted_session_is_gone_with_all_under_it(store: Store) -> None:
    root = await made(store, "root")
    child = await made_under(store, root, "child")
    for head in (root, child, await made(store, "other")):
        commit = step(head, said(1), keys=(key("c"),), text="hello", unfinished=True)
        await commit_one(store, commit)
    equal(await store.delete("root"), True)
    for name in ("root", "child"):
        equal(await store.head(name), None, name)
        equal(await store.events(name), [], name)
        equal(await store.find_key(name, "ann", "c"), None, name)
    equal([one.session for one in await store.search("hello")], ["other"])
    equal(await store.unfinished(), ["other"])
    equal([one.id for one in await store.sessions()], ["other"])
    equal(await store.delete("root"), False)
    again = await made(store, "root")
    equal(again.seq, 0)
    equal(await store.events("root"), [])
    await commit_one(store, step(again, said(9), keys=(key("c"),)))


@LIST_CHECKS.of_store
async def deleting_a_session_under_a_root_leaves_the_root(store: Store) -> None:
    root = await written(store, "root", 2)
    await made_under(store, root, "child")
    equal(await store.delete("child"), True)
    equal(await store.head("root"), root)
    equal(len(await store.events("root")), 2)


# --- backups


@LIST_CHECKS.of_scene
async def a_backup_has_everything_and_stays_as_it_is(scene: Scene) -> None:
    store = scene.store
    head = await made(store, "s")
    commit = step(head, *ONE_OF_EACH, state=b"st", title="T", keys=(key("c"),), text="hello there")
    await commit_one(store, commit)
    copy = scene.directory / "backup"
    await store.backup(str(copy))
    before = await looked(store, "s")
    await commit_one(store, step(before, said(9)))
    await made(store, "later")

    restored = await scene.open_backup(copy)
    equal(await restored.head("s"), before)
    equal(await log(restored, "s"), list(ONE_OF_EACH))
    equal(await restored.find_key("s", "ann", "c"), key("c"))
    equal([one.session for one in await restored.search("hello")], ["s"])
    equal(await restored.head("later"), None)
    now = await claimed(restored, "s")
    true(now.epoch > before.epoch, "the epoch did not rise")
    await commit_one(restored, step(now, said(1)))


@LIST_CHECKS.of_scene
async def a_backup_overwrites_nothing(scene: Scene) -> None:
    taken = scene.directory / "taken"
    taken.write_text("precious")
    error = await refused(UserError, scene.store.backup(str(taken)))
    true(str(taken) in str(error), f"the error does not name {taken}: {error}")
    equal(taken.read_text(), "precious")


# --- search


@SEARCH_CHECKS.of_store
async def search_finds_the_beginnings_of_words(store: Store) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), said(2), at=1.0, text="The Quick brown fox"))
    await commit_one(store, step(await looked(store, "s"), said(3), at=2.0, text="a quick one"))
    await commit_one(store, step(await made(store, "t"), said(1), at=3.0, text="slow; quickly!"))

    async def places(words: str, limit: int = 50) -> list[tuple[str, int]]:
        return [(one.session, one.seq) for one in await store.search(words, limit=limit)]

    equal(await places("quick"), [("t", 1), ("s", 3), ("s", 2)])
    equal(await places("QUICK", limit=2), [("t", 1), ("s", 3)])
    equal(await places("fox qui"), [("s", 2)])
    equal(await places("uick"), [])
    equal(await places("fox slow"), [])
    for nothing in ("", "  ", '"', "*", "-'%_"):
        equal(await places(nothing), [], repr(nothing))
    equal(await places('fox"*'), [("s", 2)])
    equal(await places("fox OR slow"), [])
    await store.delete("s")
    equal(await places("quick"), [("t", 1)])


@SEARCH_CHECKS.of_store
async def search_finds_only_below_the_roots_that_are_named(store: Store) -> None:
    for number in range(5):
        await commit_one(store, step(await made(store, f"s{number}"), said(1), text="the word"))
    under = await made_under(store, await looked(store, "s1"), "s1/c.1", at=9.0)
    await commit_one(store, step(under, said(1), at=9.0, text="a word below"))

    async def found(*roots: str, limit: int = 50) -> list[str]:
        hits = await store.search("word", roots=frozenset(roots), limit=limit)
        return [one.session for one in hits]

    equal(await found("s1"), ["s1/c.1", "s1"])
    equal(await found("s0", "s4", "s9"), ["s4", "s0"])
    equal(await found("s0", limit=1), ["s0"], "others do not use up the limit")
    equal(await found("s1/c.1", "s"), [])
    equal(await found(), [])


IN_MANY_SCRIPTS = (
    ("Crème brûlée", "creme BRULEE", True),
    ("creme", "crème", True),
    ("Straße", "STRASSE", True),
    ("ΑΒΓ", "αβγ", True),
    ("snake_case_name", "case", True),
    ("path/to/file.py:12", "file py 12", True),
    ("今日は東京へ行く", "東京", True),
    ("今日は東京へ行く", "京東", False),
    ("나는 학교에 간다", "학교", True),
    ("mixed東京text", "text", True),
    ("null\x00byte", "byte", True),
    ("🎉 party", "party", True),
    ("it's", "it", True),
)


@SEARCH_CHECKS.of_store
async def search_works_in_many_scripts(store: Store) -> None:
    for number, (text, words, is_found) in enumerate(IN_MANY_SCRIPTS):
        name = f"s{number}"
        await commit_one(store, step(await made(store, name), said(1), text=text))
        found = await store.search(words, roots=frozenset((name,)))
        equal(bool(found), is_found, f"{words!r} in {text!r}")


@SEARCH_CHECKS.of_store
async def an_excerpt_shows_the_word_in_its_place(store: Store) -> None:
    long = "padding " * 300 + "NEEDLE in the hay " + "more " * 300
    await commit_one(store, step(await made(store, "s"), said(1), text=long))
    (found,) = await store.search("needle")
    true("NEEDLE in the hay" in found.excerpt, f"the excerpt is {found.excerpt!r}")
    true(len(found.excerpt) < 200, f"the excerpt has {len(found.excerpt)} characters")
