"""All settings, in one file. Every value comes from the environment or `.env`; `.env.example` lists them.

A wrong or missing value stops the start with a message that names it and says what to do.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import django_stubs_ext
import environ
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from providers import registry
from providers.contract import Webhooks
from providers.outside import Allowed

# Generic classes such as ModelAdmin[Job] are plain classes at run time without this.
django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"

env = environ.Env()
if (BASE_DIR / ".env").is_file():
    environ.Env.read_env(BASE_DIR / ".env")


def _stop(name: str, problem: str, cure: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{name}: {problem} {cure}")


def _flag(name: str, *, default: bool) -> bool:
    raw = env.str(name, default="").strip().lower()
    if raw == "":
        return default
    if raw in {"1", "true", "yes", "on"}:
        return True
    if raw in {"0", "false", "no", "off"}:
        return False
    raise _stop(name, f"{raw!r} is neither yes nor no.", "Write 1 or 0.")


def _number(name: str, default: float, *, low: float, high: float) -> float:
    raw = env.str(name, default="").strip() or str(default)
    try:
        value = float(raw)
    except ValueError:
        raise _stop(
            name, f"{raw!r} is not a number.", f"Give one from {low:g} to {high:g}."
        ) from None
    if not low <= value <= high:
        raise _stop(name, f"{value:g} is out of range.", f"Give a number from {low:g} to {high:g}.")
    return value


def _whole(name: str, default: int, *, low: int, high: int) -> int:
    value = _number(name, default, low=low, high=high)
    if value != int(value):
        raise _stop(name, f"{value:g} is not a whole number.", f"Give one from {low} to {high}.")
    return int(value)


# --- what kind of start is this ---------------------------------------------------------------------------------------

DEMO = _flag("DEMO", default=False)
DEBUG = _flag("DEBUG", default=False)
TESTING = "pytest" in sys.modules

SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not DEMO:
        raise _stop(
            "SECRET_KEY", "is missing.", "Put a long random text into .env; DEMO=1 needs none."
        )
    SECRET_KEY = "demo-only-not-a-secret-" + "x" * 40

ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "jobs.apps.JobsConfig",  # before django_q: our qcluster command replaces the stock one
    "providers.apps.ProvidersConfig",
    "jobs.admin_site.DeskAdminConfig",  # django.contrib.admin with the desk's own site
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",  # indexes with an operator class
    "django.contrib.staticfiles",
    "django_q",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "jobs.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "jobs.preferences.PreferencesMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "studio.urls"
ASGI_APPLICATION = "studio.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# --- database ---------------------------------------------------------------------------------------------------------


def _database() -> dict[str, Any]:
    url = env.str("DATABASE_URL", default="")
    if url:
        config = environ.Env.db_url_config(url)
        if config.get("ENGINE") != "django.db.backends.postgresql":
            raise _stop(
                "DATABASE_URL",
                "does not name a PostgreSQL database.",
                "Write postgres://user:password@host/name.",
            )
        # A Unix socket's folder as `?host=/folder`: django-environ keeps it among the options.
        options = config.get("OPTIONS", {})
        if "host" in options:
            config["HOST"] = options.pop("host")
        return dict(config)
    if DEMO:
        from studio import embedded

        return embedded.ensure(VAR_DIR / "postgres", test=TESTING)
    raise _stop(
        "DATABASE_URL",
        "is missing, and this is not the demo.",
        "Set DATABASE_URL=postgres://user:password@host/name, or DEMO=1 for the PostgreSQL that comes along.",
    )


# LISTEN needs a session of its own; behind a pooler in transaction mode this names the server itself. That it is set says
# that DATABASE_URL leads to a pooler (docs/scale.md).
DATABASE_DIRECT_URL = env.str("DATABASE_DIRECT_URL", default="")
_pooled = bool(DATABASE_DIRECT_URL)


def _connection_options(given: dict[str, Any]) -> dict[str, Any]:
    """A commit is on the disk before we act on it, whatever the server's default; a server that is gone is noticed.

    A pooler takes no options of a session: there the role has them, and jobs/checks.py looks whether it does.
    """
    options = "" if _pooled else "-c synchronous_commit=on"
    asked = f"{given.get('options', '')} {options}".strip()
    return {"connect_timeout": 10, **given, **({"options": asked} if asked else {})}


_found_database = _database()
DATABASES = {
    "default": {
        **_found_database,
        "OPTIONS": _connection_options(_found_database.get("OPTIONS", {})),
        "ENGINE": "django.db.backends.postgresql",
        # With 0 the queue reconnects at each poll: measured 8 times slower.
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        # A cursor that outlives its statement is another session's at the next one.
        "DISABLE_SERVER_SIDE_CURSORS": _pooled,
    }
}

# --- provider and model (the names of the studio's ADR) ---------------------------------------------------------------

# What each adapter says of itself, so that a new provider needs no line here.
_KNOWN = {adapter.name: adapter.key_setting for adapter in registry.REGISTERED}
_speaks = {adapter.name: adapter for adapter in registry.REGISTERED}


def _accounts() -> dict[str, str]:
    """Further names of providers, `polza_b=polza`: each is an account of its own, with POLZA_B_API_KEY and so on."""
    accounts: dict[str, str] = {}
    for pair in env.list("AI_ACCOUNTS", default=[]):
        name, _equals, provider = (part.strip() for part in pair.partition("="))
        taken = {"ai", *_KNOWN, *accounts}  # AI_API_KEY is another setting
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,38}", name) or name in taken:
            raise _stop(
                "AI_ACCOUNTS",
                f"{name!r} is not a new name in small letters.",
                "Write polza_b=polza.",
            )
        if provider not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise _stop("AI_ACCOUNTS", f"{provider!r} is unknown.", f"Known: {known}.")
        accounts[name] = provider
    return accounts


AI_ACCOUNTS = _accounts()
_KNOWN |= {name: f"{name.upper()}_API_KEY" for name in AI_ACCOUNTS}
_speaks |= {name: _speaks[provider] for name, provider in AI_ACCOUNTS.items()}

AI_PROVIDER = env.str("AI_PROVIDER", default="") or "polza"
if AI_PROVIDER not in _KNOWN:
    raise _stop(
        "AI_PROVIDER", f"{AI_PROVIDER!r} is unknown.", f"Known: {', '.join(sorted(_KNOWN))}."
    )
AI_BASE_URL = env.str("AI_BASE_URL", default="").rstrip("/")
AI_API_KEY = env.str("AI_API_KEY", default="")
AI_MODEL = env.str("AI_MODEL", default="")
# What one generation of a target that is not in the table yet is taken to cost, in its provider's currency.
# Unset: the adapter's own guess.
AI_PRICE = _number("AI_PRICE", float(_speaks[AI_PROVIDER].default_price), low=0, high=1_000_000)
AI_MODEL_FALLBACK = [
    part.strip() for part in env.str("AI_MODEL_FALLBACK", default="").split(",") if part.strip()
]

PROVIDER_KEYS = {name: env.str(variable, default="") for name, variable in _KNOWN.items()}
PROVIDER_BASE_URLS = {
    name: env.str(f"{name.upper()}_BASE_URL", default="").rstrip("/") for name in _KNOWN
}
# What else an adapter reads, such as GIGACHAT_SCOPE; what is not set has the adapter's own default.
PROVIDER_OPTIONS = {
    name: {
        option: value
        for option in adapter.options
        if (value := env.str(f"{name.upper()}_{option.upper()}", default=""))
    }
    for name, adapter in _speaks.items()
}


def _ca_bundles() -> tuple[Path, ...]:
    """Certificates of authorities that no system knows, trusted beside the usual ones."""
    bundles = []
    for name, options in PROVIDER_OPTIONS.items():
        if "ca_bundle" in options:
            bundles.append(Path(options["ca_bundle"]))
            try:
                ssl.create_default_context(cafile=bundles[-1])
            except OSError as error:  # ssl.SSLError is one
                raise _stop(
                    f"{name.upper()}_CA_BUNDLE",
                    f"{bundles[-1]} can't be read ({error}).",
                    "Name a file of certificates in PEM form.",
                ) from error
    return tuple(bundles)


PROVIDER_CA_BUNDLES = _ca_bundles()
if AI_API_KEY:
    PROVIDER_KEYS[AI_PROVIDER] = AI_API_KEY
if AI_BASE_URL:
    PROVIDER_BASE_URLS[AI_PROVIDER] = AI_BASE_URL
# The demo's provider is the sandbox on this machine, as long as no real key is given.
SANDBOX_URL = env.str("SANDBOX_URL", default="http://127.0.0.1:8700").rstrip("/")
ON_SANDBOX = DEMO and not PROVIDER_KEYS[AI_PROVIDER]
if ON_SANDBOX:
    _spoken = _speaks[AI_PROVIDER]
    PROVIDER_KEYS[AI_PROVIDER] = _spoken.sandbox_key
    PROVIDER_BASE_URLS[AI_PROVIDER] = (
        PROVIDER_BASE_URLS[AI_PROVIDER] or f"{SANDBOX_URL}{_spoken.sandbox_path}"
    )

# --- money ------------------------------------------------------------------------------------------------------------

# What statements reckon other currencies into, at the owner's rates: what one unit of each is worth.
CURRENCY = env.str("CURRENCY", default="") or "RUB"


def _rates() -> dict[str, Decimal]:
    rates = {CURRENCY: Decimal(1)}
    for pair in env.list("CURRENCY_RATES", default=[]):
        name, _equals, told = (part.strip() for part in pair.partition("="))
        try:
            rate = Decimal(told)
        except InvalidOperation:
            rate = Decimal(0)
        if not re.fullmatch(r"[A-Z]{3}", name) or name in rates or not 0 < rate < 1_000_000_000:
            raise _stop("CURRENCY_RATES", f"{pair!r} is no rate.", "Write USD=92.5,EUR=100.1.")
        rates[name] = rate
    return rates


if not re.fullmatch(r"[A-Z]{3}", CURRENCY):
    raise _stop("CURRENCY", f"{CURRENCY!r} is no currency.", "Write three capital letters, like RUB.")  # fmt: skip
CURRENCY_RATES = _rates()

# --- the engine -------------------------------------------------------------------------------------------------------

WORKER_CONCURRENCY = _whole("WORKER_CONCURRENCY", 5, low=1, high=100_000)
WORKER_LANES = _whole("WORKER_LANES", 1, low=1, high=32)
WORKER_MAX_RETRIES = _whole("WORKER_MAX_RETRIES", 1, low=1, high=10)
FREE_REFUSAL_ATTEMPTS = _whole("FREE_REFUSAL_ATTEMPTS", 5, low=1, high=50)
POLL_INTERVAL_SEC = _number("POLL_INTERVAL_SEC", 3, low=0.05, high=300)
# Ask by each model's own latencies: seldom while nothing can have ended. 0: always every POLL_INTERVAL_SEC.
POLL_PLAN = _flag("POLL_PLAN", default=True)
POLL_DEADLINE_SEC = _number("POLL_DEADLINE_SEC", 900, low=1, high=86_400)
RECONCILE_INTERVAL_SEC = _number("RECONCILE_INTERVAL_SEC", 30, low=0.1, high=3600)
POST_DEADLINE_SEC = _number("POST_DEADLINE_SEC", 30, low=0.5, high=600)
# The same where the answer is the result itself (OpenRouter, GigaChat).
SYNC_DEADLINE_SEC = _number("SYNC_DEADLINE_SEC", 180, low=1, high=600)
JOB_PATIENCE_SEC = _number("JOB_PATIENCE_SEC", 120, low=0, high=86_400)
WORKER_JOB_TIMEOUT_SEC = _number("WORKER_JOB_TIMEOUT_SEC", 1080, low=1, high=604_800)
if WORKER_JOB_TIMEOUT_SEC < POLL_DEADLINE_SEC + 60:
    raise _stop(
        "WORKER_JOB_TIMEOUT_SEC",
        f"{WORKER_JOB_TIMEOUT_SEC:g} s is not a minute above POLL_DEADLINE_SEC ({POLL_DEADLINE_SEC:g} s).",
        f"Give at least {POLL_DEADLINE_SEC + 60:g}.",
    )
# Once the possible money of a target's unknown and late tasks passes this many prices, its sends pause.
EXPOSURE_LIMIT_PRICES = _whole("EXPOSURE_LIMIT_PRICES", 20, low=1, high=100_000)
# The ceiling sent to the provider is the target's price times this.
PRICE_CEILING_FACTOR = _number("PRICE_CEILING_FACTOR", 1.5, low=1, high=100)

_FALLBACK_WORDS = {"refused", "quota", "down"}
FALLBACK_ON = frozenset(
    word.strip()
    for word in env.str("FALLBACK_ON", default="refused,quota,down").split(",")
    if word.strip()
)
if FALLBACK_ON - _FALLBACK_WORDS:
    raise _stop(
        "FALLBACK_ON",
        f"unknown: {', '.join(sorted(FALLBACK_ON - _FALLBACK_WORDS))}.",
        "Choose from refused, quota, down; separate by commas.",
    )

# --- smoke ------------------------------------------------------------------------------------------------------------


def _smoke_names() -> tuple[str, ...]:
    names = tuple(dict.fromkeys(env.list("SMOKE_DAILY", default=[])))
    if unknown := [name for name in names if name not in _KNOWN]:
        raise _stop("SMOKE_DAILY", f"unknown: {', '.join(unknown)}.", f"Known: {', '.join(sorted(_KNOWN))}.")  # fmt: skip
    return names


def _smoke_costs() -> dict[str, Decimal]:
    costs = {}
    for pair in env.list("SMOKE_MAX_COST", default=[]):
        name, _equals, told = (part.strip() for part in pair.partition("="))
        try:
            cost = Decimal(told)
        except InvalidOperation:
            cost = Decimal(-1)
        if name not in _KNOWN or not 0 <= cost < 1_000_000:
            raise _stop("SMOKE_MAX_COST", f"{pair!r} is no limit.", "Write polza=15,fal=0.01.")
        costs[name] = cost
    return costs


# Providers whose contract is proven each day by one paid generation.
SMOKE_DAILY = _smoke_names()
# What such a generation may cost, in its provider's currency; where nothing is set, the adapter's guess with the ceiling's factor.
SMOKE_MAX_COST = _smoke_costs()

# --- alerts -----------------------------------------------------------------------------------------------------------

# Where people reach the desk, for links in messages. Empty: messages name the path only.
PUBLIC_URL = env.str("PUBLIC_URL", default="").strip().rstrip("/")
if PUBLIC_URL and not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", PUBLIC_URL):
    raise _stop(
        "PUBLIC_URL", f"{PUBLIC_URL!r} is no address of a site.", "Write https://desk.example."
    )


def _webhooks() -> frozenset[str]:
    """Providers (or accounts, by name) that tell us of a task's end. Where they are called is PUBLIC_URL."""
    names = frozenset(name.strip() for name in env.list("WEBHOOKS", default=[])) - {""}
    calling = [name for name, adapter in _speaks.items() if adapter.webhooks is not Webhooks.NONE]
    if names - set(calling):
        unknown, known = ", ".join(sorted(names - set(calling))), ", ".join(sorted(calling))
        raise _stop("WEBHOOKS", f"no webhooks come from {unknown}.", f"Choose from {known}.")
    if names and not PUBLIC_URL.startswith(("https://", "http://") if DEMO else "https://"):
        raise _stop("WEBHOOKS", "PUBLIC_URL is no https address.", "Set PUBLIC_URL=https://desk.example.")  # fmt: skip
    return names


WEBHOOKS = _webhooks()
# Where a webhook is expected, asking is only a net.
WEBHOOK_POLL_SEC = _number("WEBHOOK_POLL_SEC", 120, low=1, high=3600)
# Hosts, addresses and networks inside that callbacks may go to, plain http:// too: crm.internal, 10.1.0.0/16.
try:
    CALLBACK_ALLOW = Allowed.of(
        part.strip() for part in env.list("CALLBACK_ALLOW", default=[]) if part.strip()
    )
except ValueError as error:
    raise _stop(
        "CALLBACK_ALLOW",
        f"{error}.",
        "Write names, addresses and networks, like crm.internal, 10.1.0.0/16.",
    ) from None
# More alerts within an hour are told of in one summary.
ALERT_MOST_PER_HOUR = _whole("ALERT_MOST_PER_HOUR", 20, low=1, high=10_000)


class _Hidden(str):
    """A text that error pages and logs of settings don't show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


def _alert_urls() -> tuple[str, ...]:
    """Addresses of apprise, which hold passwords and tokens: no message of ours repeats one."""
    raw = env.str("ALERT_URLS", default="").strip().strip(",")
    if not raw:
        return ()
    # A comma may belong to an address (several mail recipients); one before a new scheme does not.
    urls = re.split(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.-]*://)", raw)
    import logging

    import apprise  # a third of a second: only where there are alerts

    # It would log the address.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    for number, url in enumerate(urls, 1):
        if re.search(r"\s", url) or apprise.Apprise.instantiate(url) is None:
            raise _stop(
                "ALERT_URLS",
                f"address {number} of {len(urls)} is none that apprise understands.",
                "Write them as on https://appriseit.com/services/, such as mailto://user:password@example.org,"
                " separated by commas or spaces.",
            )
    return tuple(dict.fromkeys(_Hidden(url) for url in urls))


ALERT_URLS = _alert_urls()

# --- the API ----------------------------------------------------------------------------------------------------------

# A tenant's jobs that may wait; beyond it programs are told to come back (429).
API_MOST_WAITING = _whole("API_MOST_WAITING", 10_000, low=1, high=10_000_000)

# --- retention (docs/retention.md): days, 0 for ever; nothing that money needs is ever removed -------------------------

# Whether a worker removes once a day what is older; else only `manage.py prune` does.
RETENTION_DAILY = _flag("RETENTION_DAILY", default=False)
RETENTION_TIMELINES_DAYS = _whole("RETENTION_TIMELINES_DAYS", 180, low=0, high=36_500)
RETENTION_EVIDENCE_DAYS = _whole("RETENTION_EVIDENCE_DAYS", 90, low=0, high=36_500)
RETENTION_PROVIDER_EVENTS_DAYS = _whole("RETENTION_PROVIDER_EVENTS_DAYS", 365, low=0, high=36_500)
RETENTION_CALLBACKS_DAYS = _whole("RETENTION_CALLBACKS_DAYS", 30, low=0, high=36_500)
RETENTION_BULK_DAYS = _whole("RETENTION_BULK_DAYS", 90, low=0, high=36_500)
RETENTION_FILES_DAYS = _whole("RETENTION_FILES_DAYS", 0, low=0, high=36_500)

# --- queue: django-q2 is the doorbell and the supervisor, its messages carry no truth ----------------------------------

RELEASE = env.str("RELEASE", default="")  # shown as each lane's code version
# Whether a call can occur whose answer is the result: only then do slices and stops take the time of such calls.
_synchronous = any(not _speaks[name].asynchronous for name, key in PROVIDER_KEYS.items() if key)
LANE_ANSWERS_SEC = SYNC_DEADLINE_SEC if _synchronous else 0.0
# At the end of a slice a lane sends nothing until the calls under way have ended: with long ones, slices are longer too.
LANE_SLICE_SEC = _number("LANE_SLICE_SEC", 600 if _synchronous else 60, low=1, high=600)
# How long a stopping lane lets asynchronous calls finish: answers that take 5 s still count, the whole stop takes under 15.
LANE_DRAIN_SEC = 5.5
_q_workers = (
    WORKER_LANES + 1
)  # one more than lanes, so that a bell which lands anywhere starts at once
_q_timeout = int(LANE_SLICE_SEC + max(POST_DEADLINE_SEC, LANE_ANSWERS_SEC) + LANE_DRAIN_SEC + 30)

Q_CLUSTER: dict[str, Any] = {
    "name": "desk",
    "label": "Django Q",
    "workers": _q_workers,
    "queue_limit": _q_workers,  # fewer: the stop can hang on unread messages; more: bells are hoarded
    "bulk": 1,  # do not hoard bells
    "timeout": _q_timeout,  # slice + longest call + margin; shorter would kill a lane at work
    # Redelivery is not how we recover, and a bell run twice is wasted: above every possible wait in the queue.
    "retry": int((_q_timeout + 3) * (-(-(_q_workers + 1) // _q_workers) + 1) + 30),
    "max_attempts": 1,  # the table is the truth; a failed bell must not come back
    "ack_failures": True,
    "save_limit": -1,  # no success rows
    "guard_cycle": 0.5,  # the guard compares its timer with 0 exactly: only 0.25, 0.5 or 1 work
    "catch_up": False,  # no burst of rings after a stop
    "poll": 5,  # a net only: the broker wakes by NOTIFY
    "recycle": 500,
    "orm": "default",
    "broker_class": "jobs.broker.NotifyingBroker",
}

# --- files ------------------------------------------------------------------------------------------------------------

MEDIA_ROOT = Path(env.str("MEDIA_ROOT", default="") or VAR_DIR / "media")
MEDIA_URL = "/media/"


def _media_storage() -> dict[str, str] | None:
    """`s3://bucket/prefix?endpoint=https://s3.example&region=…&addressing=path`; credentials as boto3 reads them."""
    url = env.str("MEDIA_STORAGE", default="").strip()
    if not url:
        return None
    parts = urlsplit(url)
    more = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = parts.path.strip("/")
    known = {"endpoint", "region", "addressing"}
    if (
        parts.scheme != "s3" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,62}", parts.netloc) or parts.fragment
        or ".." in prefix.split("/") or set(more) - known or more.get("addressing", "path") not in {"path", "virtual"}
        or not re.fullmatch(r"(https?://[^\s/?#@]+/?)?", more.get("endpoint", ""))
    ):  # fmt: skip
        # Not repeated: somebody may have put a key into it.
        raise _stop(
            "MEDIA_STORAGE", "is no address of a bucket.",
            "Write s3://bucket/prefix?endpoint=https://s3.example, without credentials: AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY have those.",
        )  # fmt: skip
    return {"bucket": parts.netloc, "prefix": prefix, **more}


# Where results and photos are kept, else below MEDIA_ROOT, which keeps what is under way in any case.
MEDIA_STORAGE = _media_storage()
# Facts wait here while the database is away: must outlive the machine's restart.
SPOOL_DIR = Path(env.str("SPOOL_DIR", default="") or VAR_DIR / "spool")
# Tokens of providers that open by one: for this host's processes only, nobody else may read them.
TOKEN_DIR = Path(env.str("TOKEN_DIR", default="") or VAR_DIR / "tokens")
EPOCH_DIR = Path(env.str("EPOCH_DIR", default="") or MEDIA_ROOT / "epoch")
MAX_RESULT_BYTES = _whole("MAX_RESULT_BYTES", 64 * 1024 * 1024, low=1024, high=2**31)
MAX_RESULT_MEGAPIXELS = _number("MAX_RESULT_MEGAPIXELS", 50, low=0.01, high=1000)
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
WHITENOISE_USE_FINDERS = True
DATA_UPLOAD_MAX_MEMORY_SIZE = 32 * 1024 * 1024

# --- language, time, sessions -----------------------------------------------------------------------------------------

LANGUAGE_CODE = "en"
LOCALE_PATHS = [BASE_DIR / "locale"]
# A language is offered once its words are compiled: Django's own alone would make pages half translated.
LANGUAGES = [
    (code, name)
    for code, name in (("en", _("English")), ("ru", _("Russian")), ("fa", _("Persian")))
    if code == LANGUAGE_CODE or (BASE_DIR / f"locale/{code}/LC_MESSAGES/django.mo").is_file()
]
USE_I18N = True
USE_TZ = True
TIME_ZONE = env.str("TIME_ZONE", default="UTC")

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not (DEMO or DEBUG)
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
LOGIN_URL = "admin:login"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="WARNING")},
    "loggers": {
        "jobs": {"level": env.str("LOG_LEVEL", default="INFO")},
        # Refused and unknown pages are the visitor's; each would leave a warning with a traceback.
        "django.request": {"level": "ERROR"},
        "httpx": {"level": "WARNING"},
        # It writes addresses with their passwords; what went wrong is told on the channel's row.
        "apprise": {"level": "CRITICAL"},
        "django-q": {"level": "WARNING"},
    },
}
os.environ.setdefault("PGCLIENTENCODING", "UTF8")
