"""Everything at once: `asyncio.gather` over all jobs, errors swallowed. What the dealer's "generate for all" did.

`python -m bench.baselines.gather JSON`, an object of what `main` takes, prints what it thinks it got.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx


async def generate(
    client: httpx.AsyncClient, prompt: str, *, model: str, folder: Path, poll_s: float, deadline_s: float
) -> bool:  # fmt: skip
    """True: the picture is there. Whatever goes wrong is False."""
    try:
        body = {"model": model, "async": True, "user": prompt, "input": {"prompt": prompt}}
        answer = await client.post("/media", json=body)
        answer.raise_for_status()
        return await follow(
            client, answer.json(), folder=folder, poll_s=poll_s, deadline_s=deadline_s
        )
    except (httpx.HTTPError, KeyError, ValueError):
        return False


async def follow(
    client: httpx.AsyncClient, task: dict[str, object], *, folder: Path, poll_s: float, deadline_s: float
) -> bool:  # fmt: skip
    """Sleep and poll until the picture can be downloaded."""
    end = time.monotonic() + deadline_s
    while task["status"] not in {"completed", "failed"} and time.monotonic() < end:
        await asyncio.sleep(poll_s)
        task = (await client.get(f"/media/{task['id']}")).json()
    if task["status"] != "completed":
        return False
    data = task["data"]
    file = data[0] if isinstance(data, list) else data
    assert isinstance(file, dict)
    picture = await client.get(file["url"])
    (folder / f"{task['id']}.png").write_bytes(picture.content)
    return True


async def main(
    *, count: int, base_url: str, key: str, model: str, folder: str, poll_s: float, deadline_s: float
) -> int:  # fmt: skip
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=30, trust_env=False
    ) as client:
        jobs = (
            generate(client, f"job {n}", model=model, folder=Path(folder), poll_s=poll_s, deadline_s=deadline_s)
            for n in range(count)
        )  # fmt: skip
        return sum(await asyncio.gather(*jobs))


if __name__ == "__main__":
    begin = time.monotonic()
    got = asyncio.run(main(**json.loads(sys.argv[1])))
    print(json.dumps({"got": got, "took_s": time.monotonic() - begin}))
