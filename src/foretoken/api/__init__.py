"""What a user holds: a model, a chat, an audit; and where settings become objects."""
