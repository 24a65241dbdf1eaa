"""The tables and figures of the TagMatch paper (EuroSys 2017), measured anew beside the published numbers."""
