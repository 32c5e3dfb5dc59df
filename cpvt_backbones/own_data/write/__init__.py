"""Writers, which write only to the folder of the config."""
