"""The report: one HTML page from run folders; `page.build_page` makes it."""
