"""The objects that a user holds (a model, a chat, an audit), and the code that makes them from settings."""
