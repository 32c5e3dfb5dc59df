from tiny import *  # noqa: F403  (renamed; goes when nothing imports it)
