"""Rules that judge data as read; :func:`.gate.check` applies them."""
