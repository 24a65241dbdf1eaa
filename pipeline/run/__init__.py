"""Running queries: the paper's stages and what schedules them (§3)."""
