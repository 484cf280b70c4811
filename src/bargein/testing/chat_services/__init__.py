"""Chat services of our own on loopback, written from the platforms' documentation.

Each speaks the protocol that the platform's library speaks, and refuses what the documentation says
that the platform refuses: calls above the rate (with the time to wait), messages that are too long,
edits that change nothing, a second reader, a wrong token. Updates come at least once. Each is a
`PlatformUnderTest` of `bargein.testing.channel_conformance`:

    async with FakeTelegram() as platform:
        await check(platform)

They are no proof that the real service behaves so.
"""
