"""A server with OpenAI's interface, for programs and for people: `foretoken serve`."""
