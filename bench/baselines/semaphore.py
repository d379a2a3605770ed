"""A semaphore and tenacity in one process, no queue: the usual cure for `gather`. Retries whatever went wrong, paid or not.

`python -m bench.baselines.semaphore JSON`, an object of what `main` takes; `wait_s` is the first wait of the retries.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx
import tenacity

from bench.baselines.gather import follow

ATTEMPTS = 3


async def main(
    *, concurrency: int, wait_s: float, count: int, base_url: str, key: str, model: str, folder: str, poll_s: float,
    deadline_s: float,
) -> int:  # fmt: skip
    places = asyncio.Semaphore(concurrency)

    @tenacity.retry(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=wait_s) + tenacity.wait_random(0, wait_s),
        retry=tenacity.retry_if_exception_type(httpx.HTTPError),
        reraise=True,
    )
    async def generate(client: httpx.AsyncClient, prompt: str) -> bool:
        body = {"model": model, "async": True, "user": prompt, "input": {"prompt": prompt}}
        answer = await client.post("/media", json=body)
        answer.raise_for_status()
        return await follow(
            client, answer.json(), folder=Path(folder), poll_s=poll_s, deadline_s=deadline_s
        )

    async def one(client: httpx.AsyncClient, number: int) -> bool:
        async with places:
            try:
                return await generate(client, f"job {number}")
            except httpx.HTTPError:
                return False

    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=30, trust_env=False
    ) as client:
        return sum(await asyncio.gather(*(one(client, number) for number in range(count))))


if __name__ == "__main__":
    begin = time.monotonic()
    got = asyncio.run(main(**json.loads(sys.argv[1])))
    print(json.dumps({"got": got, "took_s": time.monotonic() - begin}))
