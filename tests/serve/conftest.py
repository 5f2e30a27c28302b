from __future__ import annotations

from tests.tiny import one_thread as one_thread
