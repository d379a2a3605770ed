"""The settings of a small Django project whose only app is its queue. The database is DATABASE_URL's."""

from __future__ import annotations

import os

import environ

SECRET_KEY = "a benchmark"  # noqa: S105  nothing is signed for anybody
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q"]
_given = environ.Env.db_url_config(os.environ["DATABASE_URL"])
_options = _given.pop("OPTIONS", {})
DATABASES = {
    "default": {**_given, "HOST": _options.pop("host", _given.get("HOST", "")), "CONN_MAX_AGE": 600}
}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
Q_CLUSTER = {
    "name": "baseline",
    "orm": "default",
    "workers": 5,
    "timeout": 1080,
    "retry": 1200,
    "ack_failures": True,
    "max_attempts": 1,
    "save_limit": -1,
}
