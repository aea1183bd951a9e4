"""Models over HTTP: the APIs that clients already know, and the explorer.

It uses models and makes none. Only the command comes in. Requests that arrive together are answered together. Begin
with `service`.
"""
