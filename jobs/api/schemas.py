"""What goes in and out, as the document describes it. Money is text, times are ISO 8601 in UTC.

What comes in is checked twice: its shape here, its contents by jobs/intake.py, as everywhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from jobs import intake
from jobs.callbacks import URL_LENGTH

MOST_JOBS = 1000
MOST_FALLBACKS = 10
MOST_PHOTOS = 8  # a job
MOST_WAIT_S = 30 * 86_400

Name = Annotated[str, Field(max_length=intake.MAX_NAME_CHARS)]
TARGET = Field("", description="`provider:model`. Empty: the tenant's default route.", max_length=intake.MAX_NAME_CHARS)  # fmt: skip
FALLBACKS: Any = Field(
    default_factory=list, description="Targets after it, in order. Only with `target`.", max_length=MOST_FALLBACKS
)  # fmt: skip
PARAMS: Any = Field(default_factory=dict, description="For the provider's model.")
CALLBACK = Field("", description="Hears how it ends. Empty: the tenant's own address.", max_length=URL_LENGTH)  # fmt: skip
MAX_WAIT = Field(
    None, ge=0, le=MOST_WAIT_S,
    description="Refuse (429) where the quota of all targets is used up for longer than this. Left out: it waits.",
)  # fmt: skip


class In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Wanted(In):
    """One picture or text."""

    prompt: str = Field(
        min_length=1, max_length=intake.MAX_PROMPT_CHARS, description="What the picture should show."
    )  # fmt: skip
    target: str = TARGET
    fallbacks: list[Name] = FALLBACKS
    params: dict[str, Any] = PARAMS
    reference: str = Field(
        "", max_length=intake.MAX_REFERENCE_CHARS, description="Your own name for it."
    )
    priority: int = Field(
        0, ge=intake.PRIORITY_LOW, le=intake.PRIORITY_HIGH, description="Higher goes first, among the tenant's own."
    )  # fmt: skip
    callback_url: str = CALLBACK


class JobIn(Wanted):
    """`join`: where the same is under way already (prompt, parameters, photos and route), that job is the answer."""

    max_wait_s: int | None = MAX_WAIT
    join: bool = False


class BatchJobIn(Wanted):
    """`photos`: names of files in the same multipart request."""

    photos: list[Name] = Field(default_factory=list, max_length=MOST_PHOTOS)


class BatchIn(In):
    """Jobs created together: all or none. `target` and `fallbacks` are for those that name none."""

    label: str = Field("", max_length=intake.MAX_NAME_CHARS)
    target: str = TARGET
    fallbacks: list[Name] = FALLBACKS
    jobs: list[BatchJobIn] = Field(min_length=1, max_length=MOST_JOBS)
    max_wait_s: int | None = MAX_WAIT
    callback_url: str = Field(
        "", max_length=URL_LENGTH, description="Hears once that the batch is complete."
    )


# --- out --------------------------------------------------------------------------------------------------------------


class Out(BaseModel):
    pass


class EstimateOut(Out):
    """What can be expected, from this target's own history: no promise. Null where that can't be told."""

    starts_at: datetime | None
    ends_from: datetime | None
    ends_to: datetime | None
    usually: str = Field(description="How long one takes from the send on: “usually 3–6 minutes”.")


class CostOut(Out):
    """`possible`: what may still be charged."""

    currency: str
    charged: str
    possible: str


class WaitingOut(Out):
    """Why a pending job is not sent. `until` null: no time can be told."""

    why: str
    until: datetime | None


class JobOut(Out):
    id: int
    batch: int | None
    reference: str
    kind: str
    state: str = Field(
        description="pending, active, succeeded, failed, manual (a person must look), cancelled"
    )
    phase: str = Field(
        description="Finer: waiting, sending, at_provider, late, looking, fetching, …"
    )
    reason: str
    reason_text: str
    target: str
    priority: int
    created_at: datetime
    finished_at: datetime | None
    waiting: WaitingOut | None
    estimate: EstimateOut | None
    cost: list[CostOut]
    result: str | None = Field(description="Where the result is, once there is one.")


class JobsOut(Out):
    """`older`: the address of the next page, null on the last."""

    jobs: list[JobOut]
    older: str | None


class BatchOut(Out):
    """`counts` by state. `jobs`: the address of its jobs."""

    id: int
    label: str
    created_at: datetime
    completed_at: datetime | None
    paused: bool
    total: int
    counts: dict[str, int]
    done: bool
    ends_at: datetime | None
    jobs: str


class ProviderOut(Out):
    """`state`: available, quota_exhausted or down; `phrase` is the finer word. `until`: when it should be over."""

    target: str
    kind: str
    state: str
    phrase: str
    words: str
    since: datetime | None
    until: datetime | None
    price: str
    currency: str


class ProvidersOut(Out):
    """`held`: no job is sent anywhere until staff lift it."""

    held: bool
    targets: list[ProviderOut]


class LimitOut(Out):
    """`until`: then it starts anew. `left` is below zero where a charge was higher than could be foreseen."""

    most: str
    charged: str
    possible: str
    left: str
    until: datetime


class BudgetOut(Out):
    """`limits` by period (`day`, `month`), empty without any."""

    tenant: str
    currency: str
    zone: str
    limits: dict[str, LimitOut]
    in_flight: int
    max_in_flight: int | None
    waiting: int
    held: str


class FaultOut(Out):
    field: str
    pointer: str
    detail: str


class ProblemOut(Out):
    """RFC 9457. `code` is for programs."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    errors: list[FaultOut] = []
