"""Planner from Graph and Target to Plan: host values, lowering, liveness, edges, arena, size classes."""
