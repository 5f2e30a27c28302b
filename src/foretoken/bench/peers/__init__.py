"""Programs that run other engines, each in a virtual environment that has the engine."""
