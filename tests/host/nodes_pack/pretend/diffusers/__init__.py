"""Stands in for diffusers: its classes lie where the real ones do, and their work is sleep."""
