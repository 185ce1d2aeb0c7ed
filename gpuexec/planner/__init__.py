"""Graph + Target -> Plan: host values, lowering, liveness, edges, arena, size classes."""
