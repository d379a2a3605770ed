"""The web process's entry point: `uvicorn studio.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

from jobs.api.threads import in_few_threads
from jobs.hook_gate import gated
from jobs.live import in_one_thread

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "studio.settings")

application = in_few_threads(in_one_thread(gated(get_asgi_application())))
