"""All that is written: in the folder of the config, whatever labels say."""
