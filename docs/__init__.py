"""The site: pages in Markdown, what draws their pictures, and what runs their code."""
