"""Answers as text, pages and files of other formats."""
