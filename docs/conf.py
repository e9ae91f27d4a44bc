"""How Sphinx makes the site; `make docs` calls it through tools/docs_site.py, which puts the pages together first."""

project = "Floodmark"
copyright = "Floodmark's authors, Apache License 2.0"  # noqa: A001
extensions = ["myst_parser"]
smartquotes = False  # -- and quotes are part of commands, also outside of code
myst_heading_anchors = 4  # links to headings, as elsewhere in Markdown
# Output is shown with … for what differs each time: no lexer knows that.
suppress_warnings = ["misc.highlighting_failure"]
pygments_style = "friendly"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = "Floodmark"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
