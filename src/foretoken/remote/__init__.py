"""Drafting here, and checking elsewhere: a client drafts, and a host with the model checks, over a network.

wire.py     the messages
about.py    what a host says of its model
files.py    a tokenizer's files on their way
features.py what a trained drafter on a client sees of the model
link.py     the client's connection, which is made again when it breaks
answers.py  what the host's answers say
alone.py    a client whose host is gone for good
seats.py    what a client keeps of each session
client.py   a verifier whose target is on a host
limits.py   what a host takes on, and what a client may ask for
guests.py   what a host keeps of each session, and what a pass has of them
conversations.py  of which a host keeps what it has read
room.py     the host's loop: passes over the drafts of all its clients
host.py     the host's connections
relay.py    a slow network on one machine, for measurements and tests

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", section 4.2 (client and server).
"""
