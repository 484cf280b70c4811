"""Snapshots of a workspace, and undo that respects what others changed meanwhile.

    keeping = Repository.open(directory, workspace)
    before = take(keeping)
    ...                                          # a call changes files
    after = take(keeping)
    now = take(keeping)
    plan = plan_undo(keeping, [(before, after)], now)
    restore(keeping, plan)

What holds:

- A snapshot has the content, mode and link target of every file that git would not ignore, and the
  empty folders. It names what it does not cover: ignored files, files over the size limit, other
  file systems, what cannot be read, and the `.git` folders of repositories.
- Objects and index lie in the data directory. The user's `.git` is never written, of it only
  `info/exclude` is read, and a workspace needs none.
- An undo changes a path only if it still is as the call left it. Everything else is kept and named.
- A path that a snapshot does not cover is never deleted.
- Nothing is overwritten or deleted in place. The new file is exchanged with the old one, the old
  one is checked once more, and exchanged back if it was not the one that the plan had seen.
- If the program dies half-way, `recover` finishes what was begun. If the disk is full, nothing has
  been changed.

All of it is synchronous and uses the standard library and git alone, so that it can run in a child
process (`bargein.checkpoints.child`). `keeper.py` is the way in from an event loop.
"""
