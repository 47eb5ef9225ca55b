"""Pages that publish messages: the form, what fills it, the progress of many."""
