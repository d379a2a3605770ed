"""Rows for tests, made directly: a job, a send, a result, a case in whatever state a test wants. No lifecycle is run."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from PIL import Image, ImageDraw

from jobs import results
from jobs.models import Case, Job, JobEvent, ProviderTask, Result, Tenant
from jobs.roles import Role
from jobs.states import ENDED, CaseKind, JobState
from providers.models import Account, ProviderState, Target

_numbers = itertools.count(1)
PRICE = Decimal(8)
MODEL = "google/gemini-3.1-flash-image-preview"


def staff(
    role: Role | None = None,
    *,
    name: str = "",
    superuser: bool = False,
    password: str | None = None,
) -> User:
    """A member of staff in the group of the role. Without a password (hashing one takes long) they can't log in by form."""
    user = User.objects.create_user(
        name or f"{(role.value if role else 'staff').lower()}{next(_numbers)}",
        password=password,
        is_staff=True,
        is_superuser=superuser,
    )
    if role is not None:
        user.groups.add(Group.objects.get(name=role.value))
    return user


def tenant(slug: str = "studio", **values: Any) -> Tenant:
    return Tenant.objects.get_or_create(slug=slug, defaults={"name": slug.title(), **values})[0]


def target(model: str = MODEL, *, provider: str = "polza", **values: Any) -> Target:
    return Target.objects.get_or_create(
        provider=provider, model=model, defaults={"price": PRICE, "currency": "RUB", **values}
    )[0]


def account(
    now: datetime, *, provider: str = "polza", fingerprint: str = "f00dfeedcafe"
) -> Account:
    found: Account = Account.objects.get_or_create(
        provider=provider,
        fingerprint=fingerprint,
        defaults={"created_at": now - timedelta(days=30)},
    )[0]
    return found


def provider_state(now: datetime, state: str = "available", **values: Any) -> ProviderState:
    made: ProviderState = ProviderState.objects.update_or_create(
        account=values.pop("account", None) or account(now),
        model=values.pop("model", ""),
        defaults={"state": state, "since": now - timedelta(hours=2), **values},
    )[0]
    return made


def job(
    now: datetime,
    state: JobState = JobState.PENDING,
    *,
    prompt: str = "A red bicycle against a white wall",
    **values: Any,
) -> Job:
    """Ended jobs finished half a minute ago; a succeeded one without a result needs `decided_at` (a person's word)."""
    to = values.pop("target", None) or target()
    created_at = values.pop("created_at", now - timedelta(minutes=3))
    defaults: dict[str, Any] = {
        "tenant": values.pop("tenant", None) or tenant(),
        "route": [to.pk],
        "not_before": created_at,
        "attempts_since": created_at,
        "finished_at": now - timedelta(seconds=30) if state in ENDED else None,
    }
    if state is JobState.SUCCEEDED and "delivered" not in values:
        defaults["decided_at"] = now - timedelta(seconds=30)
    made = Job.objects.create(
        prompt=prompt, target=to, state=state, created_at=created_at, **defaults | values
    )
    event(made, "created", created_at, target=to.name)
    return made


def task(of: Job, now: datetime, *, armed: bool = True, **values: Any) -> ProviderTask:
    """A send armed a minute ago; what came of it is told by the fact columns. It blocks unless told otherwise."""
    at = values.pop("armed_at", now - timedelta(minutes=1))
    defaults: dict[str, Any] = {
        "tenant": of.tenant,
        "target": of.target,
        "account": account(now, provider=of.target.provider),
        "estimated_cost": of.target.price,
        "currency": of.target.currency,
        "run_id": uuid.uuid4(),
        "host": "desk-1",
        "created_at": at - timedelta(milliseconds=300),
    }
    if armed:
        defaults |= {
            "armed_at": at,
            "send_not_after": at + timedelta(seconds=10),
            "call_deadline_s": 30.0,
        }
    if values.get("blocks_send") is False:
        defaults["released_by"] = "free"
    made = ProviderTask.objects.create(job=of, **defaults | values)
    made.refresh_from_db()
    event(of, "intent", made.created_at, task=made, target=of.target.name)
    if armed:
        event(of, "armed", at, task=made)
    return made


def accepted(of: Job, now: datetime, **values: Any) -> ProviderTask:
    at = values.get("armed_at", now - timedelta(minutes=1)) + timedelta(seconds=1.2)
    number = next(_numbers)
    made = task(
        of,
        now,
        **{
            "provider_id": f"gen_{number:06d}{uuid.uuid4().hex[:10]}",
            "accepted_at": at,
            "last_status": "processing",
        }
        | values,
    )
    event(of, "accepted", at, task=made, provider_id=made.provider_id)
    return made


def lost(of: Job, now: datetime, **values: Any) -> ProviderTask:
    at = values.get("armed_at", now - timedelta(minutes=1)) + timedelta(seconds=2)
    evidence: dict[str, Any] = {
        "submit": {
            "status": None,
            "headers": {},
            "body": "",
            "broke": "ReadError: connection reset by peer",
            "left": True,
        }
    }
    made = task(
        of,
        now,
        **{
            "lost_at": at,
            "failure_class": "unknown",
            "failure_text": "connection reset by peer",
            "evidence": evidence,
        }
        | values,
    )
    event(of, "lost", at, task=made, reason="connection reset by peer")
    return made


def picture(hue: int = 200, *, text: str = "", size: int = 480) -> Image.Image:
    """A picture that can be told from others by its colour."""
    image = Image.new("HSV", (size, size), (hue % 256, 90, 225)).convert("RGB")
    draw = ImageDraw.Draw(image)
    for inset in range(24, size // 2 - 12, 42):
        draw.ellipse((inset, inset, size - inset, size - inset), outline=(255, 255, 255), width=10)
    draw.text((20, 20), text, fill=(20, 24, 40))
    return image


def result(
    of: Job, now: datetime, *, by: ProviderTask | None = None, hue: int = 200, deliver: bool = True
) -> Result:
    """A real file with a thumbnail below MEDIA_ROOT."""
    stem = f"results/test/{uuid.uuid4()}"
    path = results.path_of(f"{stem}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    image = picture(hue, text=of.reference)
    image.save(path, "PNG")
    image.resize((256, 256)).save(results.path_of(f"{stem}.thumb.webp"), "WEBP")
    data = path.read_bytes()
    made = Result.objects.create(
        job=of, task=by, key=f"{stem}.png", thumb_key=f"{stem}.thumb.webp", sha256=hashlib.sha256(data).hexdigest(),
        media_type="image/png", size_bytes=len(data), width=image.width, height=image.height, created_at=now,
    )  # fmt: skip
    if deliver:
        Job.objects.filter(pk=of.pk).update(delivered=made)
        of.refresh_from_db()
    return made


def done(now: datetime, *, hue: int = 200, **values: Any) -> Job:
    """A job that went well: sent, polled, fetched, charged."""
    took = timedelta(seconds=42)
    made = job(now, JobState.ACTIVE, **values)
    armed = made.created_at + timedelta(seconds=1)
    send = accepted(
        made, now, armed_at=armed, completed_at=armed + took, stored_at=armed + took + timedelta(seconds=1),
        cost_poll=Decimal("7.84"), polls=14, last_status="completed", blocks_send=False, released_by="stored",
    )  # fmt: skip
    event(made, "completed", armed + took, task=send)
    event(made, "stored", armed + took + timedelta(seconds=1), task=send)
    event(made, "succeeded", armed + took + timedelta(seconds=1))
    result(made, now, by=send, hue=hue)
    Job.objects.filter(pk=made.pk).update(
        state=JobState.SUCCEEDED, finished_at=armed + took + timedelta(seconds=1)
    )
    made.refresh_from_db()
    return made


def case(
    kind: CaseKind,
    now: datetime,
    *,
    of: Job | None = None,
    by: ProviderTask | None = None,
    **values: Any,
) -> Case:
    opened_at = values.pop("opened_at", now - timedelta(minutes=40))
    defaults = {"money_at_risk": PRICE, "currency": "RUB", "due_at": opened_at + timedelta(hours=4)}
    made = Case.objects.create(kind=kind, job=of, task=by, opened_at=opened_at, **defaults | values)
    if of is not None:
        event(of, "case_opened", opened_at, task=by, case=kind.value)
    return made


def event(
    of: Job,
    kind: str,
    at: datetime,
    *,
    task: ProviderTask | None = None,
    actor: User | None = None,
    **data: Any,
) -> JobEvent:
    return JobEvent.objects.create(job=of, task=task, kind=kind, at=at, actor=actor, data=data)


def media_root() -> str:
    return str(settings.MEDIA_ROOT)


def everything(now: datetime, *, done_jobs: int = 3) -> dict[str, Job]:
    """One job in every phase, with the cases and states that go with them; by a short name."""
    minute = timedelta(minutes=1)
    fallback = target("openai/gpt-5-image", price=Decimal("11.5"))
    dealer = tenant("dealer", name="Автосалон «Восток»", max_in_flight=4)
    publisher = tenant("publisher", name="نشر کتاب")
    jobs = {
        "waiting": job(now, reference="B-2041", prompt="Обложка: зимний лес, акварель"),
        "sending": job(now, JobState.ACTIVE, tenant=dealer, reference="VIN-88213", prompt="Silver sedan in a bright showroom, three-quarter view"),
        "at_provider": job(now, JobState.ACTIVE, tenant=publisher, reference="جلد-۱۲", prompt="تصویر روی جلد: باغ ایرانی با حوض آبی و درختان سرو در غروب"),
        "late": job(now, JobState.ACTIVE, created_at=now - 25 * minute, reference="late-one"),
        "looking": job(now, JobState.ACTIVE, tenant=dealer, reference="VIN-88214"),
        "checking": job(now, JobState.ACTIVE),
        "fetching": job(now, JobState.ACTIVE),
        "unknown": job(now, JobState.MANUAL, reason="unknown_send", created_at=now - 70 * minute, tenant=dealer, reference="VIN-88190",
                       prompt="x" * 300),
        "charged": job(now, JobState.MANUAL, reason="failed_but_charged", created_at=now - 320 * minute, reference="B-1999"),
        "by_hand": job(now, JobState.MANUAL, reason="by_hand", reason_text="The customer calls back tomorrow.", created_at=now - 90 * minute),
        "failed": job(now, JobState.FAILED, reason="refused_by_all", reason_text="HTTP 400: prompt was rejected by the safety system",
                      route=[target().pk, fallback.pk], reference="B-2040", prompt="Something the provider would not draw"),
        "cancelled": job(now, JobState.CANCELLED, reason="cancelled", reason_text="Ordered twice", decided_at=now - minute),
    }  # fmt: skip
    task(jobs["sending"], now, armed_at=now - timedelta(seconds=3))
    accepted(
        jobs["at_provider"],
        now,
        armed_at=now - timedelta(seconds=38),
        polls=12,
        next_poll_at=now + timedelta(seconds=2),
    )
    accepted(jobs["late"], now, armed_at=now - 24 * minute, polls=310)
    lost(jobs["looking"], now)
    accepted(
        jobs["checking"],
        now,
        failed_at=now - timedelta(seconds=20),
        failure_class="down",
        failure_text="upstream error",
        last_status="failed",
    )
    accepted(
        jobs["fetching"],
        now,
        completed_at=now - timedelta(seconds=1),
        cost_poll=Decimal("7.84"),
        last_status="completed",
        polls=9,
    )
    send = lost(
        jobs["unknown"], now, armed_at=now - 69 * minute,
        candidates=[{"id": "gen_93ab77", "model": MODEL, "status": "completed", "cost": "7.84"}],
    )  # fmt: skip
    case(CaseKind.UNKNOWN_SEND, now, of=jobs["unknown"], by=send, opened_at=now - 66 * minute)
    send = accepted(
        jobs["charged"], now, armed_at=now - 319 * minute, failed_at=now - 318 * minute, cost_receipt=Decimal("7.84"),
        receipt_final_at=now - 316 * minute, failure_class="down", failure_text="generation failed", last_status="failed",
        evidence={"verdict": {"status": 200, "headers": {"content-type": "application/json", "authorization": "[hidden]"},
                              "body": '{"id":"gen_1","status":"failed","error":{"message":"generation failed"}}'}},
    )  # fmt: skip
    case(
        CaseKind.FAILED_BUT_CHARGED,
        now,
        of=jobs["charged"],
        by=send,
        opened_at=now - 316 * minute,
        money_at_risk=Decimal("7.84"),
    )
    case(
        CaseKind.BY_HAND,
        now,
        of=jobs["by_hand"],
        money_at_risk=Decimal(0),
        note="The customer calls back tomorrow.",
    )
    for at in (5, 4):
        task(
            jobs["failed"], now, armed_at=now - at * minute, blocks_send=False, refusal_class="rejected", refused_at=now - (at - 1) * minute,
            failure_class="rejected", failure_text="HTTP 400: prompt was rejected by the safety system",
        )  # fmt: skip
    case(CaseKind.REFUSED_BY_ALL, now, of=jobs["failed"], money_at_risk=Decimal(0))
    for number in range(done_jobs):
        made = done(now, hue=number * 18, created_at=now - timedelta(minutes=12 + 7 * number), reference=f"B-20{number + 10}",
                    prompt=["Cover: a lighthouse at dusk, oil", "Синий велосипед у белой стены", "باغ ایرانی با حوض آبی"][number % 3])  # fmt: skip
        jobs[f"done{number}"] = made
    provider_state(
        now,
        "throttled",
        reason="HTTP 429: too many requests",
        blocked_until=now + timedelta(seconds=40),
    )
    provider_state(
        now,
        "quota_exhausted",
        model="openai/gpt-5-image",
        blocked_until=now + timedelta(hours=52),
        reason="weekly limit reached",
    )
    return jobs
