"""A picture over the HTTP API: DESK_URL=https://desk.example DESK_TOKEN=desk_… python client.py "A red bicycle"."""

import os
import sys
import time
import uuid
from pathlib import Path

import httpx

UNDER_WAY = {"pending", "active", "manual"}


def create(desk: httpx.Client, prompt: str, key: str) -> int:
    """The job's number. With the same key it is made and paid for once, however often this is called."""
    while True:
        try:
            headers = {"Idempotency-Key": key}
            answer = desk.post("/api/v1/jobs", json={"prompt": prompt}, headers=headers)
        except httpx.TransportError:
            time.sleep(5)
            continue
        if answer.status_code not in {429, 503}:
            break
        time.sleep(
            float(answer.headers["Retry-After"])
        )  # too fast, or no provider can: it says when
    if answer.is_error:
        raise SystemExit(answer.json()["detail"])
    return int(answer.json()["id"])


def result(desk: httpx.Client, job: int) -> bytes:
    while (told := desk.get(f"/api/v1/jobs/{job}").raise_for_status().json())["state"] in UNDER_WAY:
        time.sleep(3)
    if told["state"] != "succeeded":
        raise SystemExit(f"{told['state']}: {told['reason']} {told['reason_text']}")
    return desk.get(f"/api/v1/jobs/{job}/result").raise_for_status().content


if __name__ == "__main__":
    token = {"Authorization": f"Bearer {os.environ['DESK_TOKEN']}"}
    with httpx.Client(
        base_url=os.environ["DESK_URL"], headers=token, follow_redirects=True
    ) as desk:
        job = create(desk, sys.argv[1], key=str(uuid.uuid4()))
        Path(f"{job}.png").write_bytes(result(desk, job))
