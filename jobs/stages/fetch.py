"""fetch: completed tasks without a stored file -> Result stored, job succeeded; a case after n tries."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from django.conf import settings

from jobs import results
from jobs.lane import LaneContext
from jobs.lifecycle import claim
from jobs.lifecycle.record import Fact, FileFact
from jobs.models import ProviderTask
from jobs.rules import FETCH_TRIES
from jobs.stages import inline
from providers import asking, registry
from providers.contract import FileRef, Kind, Refusal, Verdict
from providers.http import Downloaded, sanitise

DOWNLOAD_DEADLINE_S = 120.0
LEASE_S = 180.0
RETRY_FIRST_S, RETRY_MOST_S = 2.0, 600.0
NO_FILE = "the provider names no file"
OUR_STORAGE = "our storage failed"


def claim_fetches(lane: LaneContext, room: int) -> list[ProviderTask]:
    return claim.claim_due(
        column="next_fetch_at", run_id=lane.run_id, room=room, lease_s=LEASE_S, now=lane.clock.now()
    )


async def act(lane: LaneContext, task: ProviderTask) -> Fact:
    """Bring every file of a task home, or say why not and when to try again."""
    if any(item.get("key") for item in task.files):
        refs = await asyncio.to_thread(lambda: [inline.load(item) for item in task.files])
    else:
        refs = [inline.load(item) for item in task.files]
    stored: list[FileFact] = []
    trouble = ""
    try:
        words = task.result_text if task.job.kind == Kind.TEXT and not refs else ""
        if task.fetch_failures or not (refs or words) or any(_empty(ref) for ref in refs):
            # An address may have expired or come late, or inline bytes could not be kept: ask for the files anew.
            refs = await _ask_again(lane, task) or refs
        if words and not refs:
            refs = [FileRef(data=words.encode())]
        for position, ref in enumerate(refs):
            kept = await _one(lane, task, position, ref, text=bool(words))
            if isinstance(kept, str):
                trouble = kept
                break
            stored.append(kept)
    except OSError as error:
        trouble = f"{OUR_STORAGE}: {error}"
    at = await lane.now()
    if stored and not trouble:
        return Fact(
            task_id=task.pk, at=at, kind="stored", decides=True, stored=True, results=tuple(stored),
            data={"files": len(stored), "bytes": sum(item.size_bytes for item in stored)},
        )  # fmt: skip
    wait = min(RETRY_FIRST_S * 2 ** min(task.fetch_failures, 20), RETRY_MOST_S)
    reason = sanitise(trouble or NO_FILE, limit=300)
    return Fact(
        task_id=task.pk, at=at, kind="fetch_trouble", decides=True, fetch_failed=True, fetch_trouble=reason,
        next_fetch_at=at + timedelta(seconds=wait), fetch_over=_over(task, trouble, at=at), data={"reason": reason},
    )  # fmt: skip


def _empty(ref: FileRef) -> bool:
    return ref.url is None and ref.data is None and ref.file_id is None


def _over(task: ProviderTask, trouble: str, *, at: datetime) -> bool:
    """Whether asking on is in vain; a case is open then. What stands in our own way may always end."""
    if task.fetch_failures + 1 < FETCH_TRIES or trouble.startswith(OUR_STORAGE):
        return False
    return not trouble or (task.watch_until is not None and at >= task.watch_until)


async def _ask_again(lane: LaneContext, task: ProviderTask) -> list[FileRef]:
    provider = task.account.provider
    adapter, account = registry.adapter(provider), lane.accounts.get(provider)
    if account is None or task.provider_id is None:
        return []
    _answer, read = await asking.status(
        lane.transport, adapter, account, task.named, deadline_s=60.0
    )
    mine = isinstance(read, Verdict) and read.provider_id in {None, task.provider_id}
    return list(read.files) if isinstance(read, Verdict) and mine else []


async def _address(
    lane: LaneContext, task: ProviderTask, ref: FileRef
) -> tuple[str, dict[str, str]] | str | None:
    """Where the file is, and the headers that open it; None where nobody can say, or why it does not open now."""
    if ref.file_id is None:
        return None if ref.url is None else (ref.url, {})
    provider = task.account.provider
    adapter, account = registry.adapter(provider), lane.accounts.get(provider)
    call = adapter.file(account, ref.file_id) if account is not None else None
    if call is None or account is None:
        return None
    opened = await asking.entry(lane.transport, adapter, account)
    if isinstance(opened, Refusal):
        return f"not downloaded: {opened.reason}"
    return call.url, {**call.headers, **opened}


async def _one(
    lane: LaneContext, task: ProviderTask, position: int, ref: FileRef, *, text: bool
) -> FileFact | str:
    if ref.data is not None:
        temporary = await asyncio.to_thread(results.write_temporary, ref.data)
    elif (where := await _address(lane, task, ref)) is not None:
        if isinstance(where, str):
            return where
        url, headers = where
        temporary = results.new_temporary()
        got = await lane.transport.download(
            url, temporary, max_bytes=settings.MAX_RESULT_BYTES, deadline_s=DOWNLOAD_DEADLINE_S, headers=headers
        )  # fmt: skip
        if not isinstance(got, Downloaded):
            if got.status == 401 and ref.file_id is not None:
                provider = task.account.provider  # the next try gets another token
                asking.refused(registry.adapter(provider), lane.accounts[provider], headers)
            why = getattr(got, "reason", "") or f"HTTP {got.status}"
            return f"not downloaded: {why}"
    else:
        return "the provider did not send the file again"
    kept = await results.keep(
        temporary,
        key_base=results.key_base(task.pk, task.created_at),
        index=position,
        kind=Kind.TEXT if text else Kind(task.job.kind),
        pictures=lane.pictures,
        max_bytes=settings.MAX_RESULT_BYTES,
    )
    if isinstance(kept, results.Rejected):
        return kept.reason
    return FileFact(
        position=position, key=kept.key, thumb_key=kept.thumb_key, sha256=kept.sha256, media_type=kept.media_type,
        size_bytes=kept.size_bytes, width=kept.width, height=kept.height,
    )  # fmt: skip
