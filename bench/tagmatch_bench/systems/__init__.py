"""The systems that tagmatch is compared with (§4.1 of the TagMatch paper), behind one small protocol."""
