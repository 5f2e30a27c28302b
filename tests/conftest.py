from __future__ import annotations

import os

# nothing in the tests may reach for a network
os.environ["HF_HUB_OFFLINE"] = "1"
