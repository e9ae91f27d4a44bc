# ruff: noqa
# mypy: ignore-errors
"""The plan that tools/merge_modules.py carries out: which modules become one. See docs/design/2026-11-18-tree.md."""

import os, ast, sys

ROOT = sys.argv[1]
SRC = ROOT + "/src/floodmark/"
cur = []
for d, _, fs in os.walk(SRC):
    for f in sorted(fs):
        if f.endswith(".py") and f != "__init__.py":
            cur.append(os.path.relpath(os.path.join(d, f), SRC)[:-3])


def group(new, *olds):
    for o in olds:
        G.append((o, new))


G = []
group("chain/ids", "chain/hashes", "chain/ids", "chain/refs", "chain/head")
group("chain/source_steps", "chain/sources")
group("chain/schema", "chain/schema", "chain/evolution")
group("chain/flatbuffers", "chain/flat", "chain/slots")
group("chain/wire", "chain/codec", "chain/tables")
group("chain/rules", "chain/rules", "chain/transform_rules")
group("chain/walk", "chain/walk", "chain/skips")
group("provenance/why", "provenance/why", "provenance/asked", "provenance/forward")
group("provenance/origin", "provenance/origin", "provenance/inputs")
group("provenance/transactions", "provenance/opened")
group("provenance/tree", "provenance/tree", "provenance/text")
group("provenance/comparison", "provenance/comparing", "provenance/replayed")
group("provenance/replay", "provenance/replay", "provenance/replay_columns")
group("provenance/replay_meta", "provenance/replay_claimed")
group("spark_source/source", "spark_source/source", "spark_source/register")
group("spark_source/options", "spark_source/options", "spark_source/columns")
group("spark_source/reader", "spark_source/reading", "spark_source/following", "spark_source/positions")
group("spark_source/writer", "spark_source/delivering", "spark_source/sink", "spark_source/queries")
group("maintenance/gc", "garbage/collect", "garbage/unnamed")
group("maintenance/staging", "garbage/staging")
group("maintenance/garbage_sources", "garbage/sources", "garbage/key_files")
group("maintenance/meta_garbage", "garbage/meta")
group("maintenance/errors", "garbage/errors")
group("maintenance/doctor", "doctor/checkup", "doctor/health")
group(
    "maintenance/checks",
    "doctor/finding",
    "doctor/versions",
    "doctor/spark",
    "doctor/clock",
    "doctor/folders",
    "doctor/disk",
    "doctor/file_system",
    "doctor/conditional",
)
group("timeline/settings", "timeline/settings", "timeline/order/partitions")
group("timeline/update", "timeline/change/update", "timeline/change/purge")
group("timeline/writer", "timeline/change/changing")
group("timeline/fold", "timeline/change/fold")
group("timeline/intake", "timeline/change/intake")
group("timeline/merge", "timeline/change/merge", "timeline/change/sharing")
group("timeline/planner", "timeline/plan/planner")
group("timeline/piece_cuts", "timeline/plan/settle")
group("timeline/cost", "timeline/plan/cost", "timeline/plan/fold_plan")
group("timeline/arrangement", "timeline/plan/arrange")
group("timeline/merge_jobs", "timeline/plan/works")
group("timeline/tasks", "timeline/change/tasks")
group("timeline/pieces", "timeline/order/pieces", "timeline/order/places")
group("timeline/sections", "timeline/order/spans", "timeline/order/ranges")
group("timeline/piece_files", "timeline/reading/sources", "timeline/reading/tail", "timeline/stored/own_writing")
group(
    "timeline/manifest",
    "timeline/stored/objects",
    "timeline/stored/own_files",
    "timeline/stored/manifest",
    "timeline/stored/bundles",
    "timeline/upkeep/purged_files",
)
group("timeline/root", "timeline/stored/root", "timeline/stored/publish", "timeline/upkeep/gc")
group("timeline/read", "timeline/reading/read", "timeline/reading/spark_frame", "timeline/reading/instead")
group("timeline/interleave", "timeline/reading/interleave", "timeline/reading/lying", "timeline/reading/gathering")
group("timeline/verify", "timeline/upkeep/check")
group("timeline/scene", "timeline/picture/axis", "timeline/picture/scene")
group(
    "timeline/picture",
    "timeline/picture/words",
    "timeline/picture/text",
    "timeline/picture/drawing",
    "timeline/picture/svg",
)
group("timeline/offset_ranges", "timeline/stored/packed_offsets")
group("timeline/footers", "timeline/stored/footers")
group("timeline/recent_files", "timeline/stored/recent")
group("pipeline/graph", "pipeline/graph", "pipeline/tables")
group("pipeline/checks", "pipeline/checks", "pipeline/column_checks")
group("pipeline/nodes", "pipeline/work", "pipeline/standing")
group("pipeline/picture", "pipeline/text_picture", "pipeline/svg_layout", "pipeline/svg_picture")
group("pipeline/project", "pipeline/loading", "pipeline/project")
group("pipeline/run", "pipeline/running", "pipeline/watching")
have = set(cur)
MODULE = {}
for o, n in G:
    if o not in have:
        print("NOT THERE", o)
        continue
    MODULE[o] = n
missing = [
    c
    for c in cur
    if c.split("/")[0] in ("chain", "provenance", "spark_source", "garbage", "doctor", "timeline") and c not in MODULE
]
print("left as is:", missing)
for c in cur:
    MODULE.setdefault(c, c)
SYMBOL = {}
RENAME = {
    ("timeline/reading/read", "BATCH_ROWS"): "READ_BATCH_ROWS",
    ("chain/hashes", "_HINT"): "_HASH_HINT",
    ("garbage/collect", "find"): "find_garbage",
    ("garbage/collect", "collect"): "collect_garbage",
    ("garbage/unnamed", "find"): "find_unnamed",
    ("garbage/unnamed", "collect"): "collect_unnamed",
    ("timeline/picture/drawing", "_GUTTER"): "_SVG_GUTTER",
    ("timeline/picture/drawing", "_legend"): "_svg_legend",
    ("timeline/picture/drawing", "_panel"): "_svg_panel",
    ("timeline/reading/tail", "_piece"): "_tail_piece",
    ("timeline/change/purge", "_change"): "_drop_from_root",
}
DOC = {}
INITS = {}
for p in ["", "engine", "transform/meta"]:
    t = ast.parse(open(SRC + (p + "/" if p else "") + "__init__.py").read())
    d = {}
    for n in ast.walk(t):
        if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("floodmark"):
            for a in n.names:
                d[a.asname or a.name] = ("keep", None)
    INITS["floodmark" + ("." + p.replace("/", ".") if p else "")] = d
INITS["floodmark.cli"] = {"main": ("keep", None)}
