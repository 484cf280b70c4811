"""Exchanges the code of an invitation to a shared chat for a guest's token. It works once."""

from contextlib import ExitStack

import aiohttp

from bargein.client.address import Address
from bargein.client.problems import error_of, unreachable
from bargein.client.wire import read
from bargein.contracts.guests import Joined
from bargein.errors import UserError

JOIN_S = 30.0
ANSWER_BYTES_MAX = 64 * 1024


async def join(address: Address) -> Joined:
    """Uses up the invitation in the address. Raises `Unauthenticated` if it was used before."""
    if address.code is None:
        raise UserError(f"{address.url}: an invitation has #join=... behind the address")
    headers = {"authorization": f"Bearer {address.code}"}
    timeout = aiohttp.ClientTimeout(total=JOIN_S)
    with ExitStack() as stack:
        connector = address.connector(stack)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
                http.post(
                    f"{address.url}/v1/join",
                    headers=headers,
                    ssl=address.ssl,
                    allow_redirects=False,
                ) as response,
            ):
                body = bytearray()
                while len(body) < ANSWER_BYTES_MAX and (piece := await response.content.readany()):
                    body += piece
                if response.status != 200:
                    raise error_of(response.status, bytes(body))
                return read(Joined, bytes(body))
        except (aiohttp.ServerFingerprintMismatch, aiohttp.ClientConnectorCertificateError) as why:
            raise UserError(
                f"{address.url} shows an unknown certificate; compare it with the SHA-256 that "
                "/share showed, and give that as --fingerprint"
            ) from why
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(address.url, error) from error
