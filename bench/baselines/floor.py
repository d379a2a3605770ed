"""The least that any engine of ours can cost: the same calls and files by the desk's own HTTP clients, and nothing else.

`python -m bench.baselines.floor JSON`, an object of what `main` takes, prints its own CPU seconds. No database, no
decisions, no decoding: a POST on a fresh connection, polls until it is completed, the picture downloaded and flushed, linked
to its name, and a thumbnail's few bytes beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from decimal import Decimal
from pathlib import Path

import django

THUMBNAIL = b"\0" * 8_000  # what one of ours has


async def main(
    *, count: int, base_url: str, key: str, model: str, folder: str, poll_s: float, concurrency: int
) -> float:
    """CPU seconds of this process, from the first call to the last file."""
    from jobs.clock import clock
    from providers.adapters.polza import Polza
    from providers.contract import Accepted, Account, Answer, Kind, Named, Request, Verdict
    from providers.download import Downloaded
    from providers.http import Transport

    polza, account = Polza(), Account("polza", base_url, "", key)
    headers = polza.authorisation(account)
    places = asyncio.Semaphore(concurrency)

    async def one(transport: Transport, number: int) -> None:
        request = Request(
            correlation_id=uuid.uuid4(), model=model, kind=Kind.IMAGE, prompt=f"a lighthouse {number}", max_price=Decimal(12)
        )  # fmt: skip
        async with places:
            answer = await transport.send_paid(
                polza.submit(account, request), headers, send_not_after=clock.boot() + 10, deadline_s=30, boot=clock.boot
            )  # fmt: skip
            assert isinstance(answer, Answer)
            accepted = polza.read_submit(answer)
            assert isinstance(accepted, Accepted)
            while True:
                await asyncio.sleep(poll_s)
                call = polza.poll(account, Named(accepted.provider_id, model))
                read = polza.read_poll(await transport.read(call, headers, deadline_s=20))
                if isinstance(read, Verdict):
                    break
            temporary = Path(folder, f"{uuid.uuid4()}.part")
            url = read.files[0].url
            assert url is not None
            got = await transport.download(url, temporary, max_bytes=2**26, deadline_s=120)
            assert isinstance(got, Downloaded)
            await asyncio.to_thread(_keep, temporary, Path(folder, f"{number}.png"))

    async with Transport() as transport:
        begin = time.process_time()
        await asyncio.gather(*(one(transport, number) for number in range(count)))
        return time.process_time() - begin


def _keep(temporary: Path, final: Path) -> None:
    from jobs.results import flush_and_hash

    flush_and_hash(temporary)
    os.link(temporary, final)
    temporary.unlink()
    thumbnail = final.with_suffix(".thumb")
    thumbnail.write_bytes(THUMBNAIL)
    flush_and_hash(thumbnail)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "studio.settings")
    django.setup()
    print(json.dumps({"cpu_s": asyncio.run(main(**json.loads(sys.argv[1])))}))
