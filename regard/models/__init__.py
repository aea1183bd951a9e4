"""The family: one file for each member, built from `regard.core`, and what is about all of them.

The last statement of a member's file is its `FAMILY`; no member imports another. `family` knows them by name, `storage`
keeps them on disk, `costs` counts them. Who knows models by name comes in: conversion, recipes, studies; tasks and
training are handed one. Begin with `transformer`.
"""
