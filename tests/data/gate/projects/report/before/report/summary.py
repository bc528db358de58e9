"""Summaries of tables in CSV."""

import csv


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
