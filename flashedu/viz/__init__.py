"""Data in, pictures out: matplotlib figures for the chapters. No widgets here."""
