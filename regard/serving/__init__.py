"""Models over HTTP: the APIs that clients already know, and the explorer."""
