"""The web process's entry point: `uvicorn studio.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

from jobs.body_limit import bounded
from jobs.live import in_one_thread

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "studio.settings")

application = in_one_thread(bounded(get_asgi_application()))
