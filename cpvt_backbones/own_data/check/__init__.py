"""Rules for data as read; :func:`.gate.check` applies them."""
