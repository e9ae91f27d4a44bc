# ruff: noqa
# mypy: ignore-errors
"""Merge and move modules of src/floodmark by a plan, and rewrite every reference: for the new tree (issue 18).

Run: python tools/merge_modules.py WORK_TREE [--write]
Without --write only the problems are listed: name collisions, shadowed names, import conflicts. Solve them in
tools/tree_plan.py. Afterwards run ruff (fix I and F401, format) and mypy; both find what the merge could not.

A merged module has the imports of its parts and their statements, sorted so that what a definition needs comes first.
Module attributes (`manifest.load`) become plain names inside the merged module. Delete both files with issue 18.
"""

import ast, os, re, sys, collections

ROOT = sys.argv[1]
SRC = ROOT + "/src/floodmark/"
from tree_plan import MODULE, SYMBOL, RENAME, DOC, INITS

problems = []


def dotted(c):
    return "floodmark." + c.replace("/", ".")


OLD = {dotted(c): c for c in MODULE}


def new_of(c, name):
    return SYMBOL.get((c, name), MODULE[c])


def newname(c, name):
    return RENAME.get((c, name), name)


class File:
    def __init__(self, path, old=None):
        self.path = path
        self.old = old
        self.text = open(path, encoding="utf-8").read()
        self.tree = ast.parse(self.text)
        self.lines = self.text.splitlines(keepends=True)
        self.starts = [0]
        for l in self.lines:
            self.starts.append(self.starts[-1] + len(l))
        # utf8 col offsets -> char offsets
        self.edits = []

    def off(self, line, col):
        l = self.lines[line - 1]
        if l.isascii():
            return self.starts[line - 1] + col
        return self.starts[line - 1] + len(l.encode("utf-8")[:col].decode("utf-8"))

    def span(self, n):
        return self.off(n.lineno, n.col_offset), self.off(n.end_lineno, n.end_col_offset)

    def edit(self, s, e, t):
        self.edits.append((s, e, t))

    def render(self, s, e):
        out = []
        p = s
        for a, b, t in sorted(self.edits):
            if a >= s and b <= e:
                if a < p:
                    continue
                out.append(self.text[p:a])
                out.append(t)
                p = b
        out.append(self.text[p:e])
        return "".join(out)


def bound_names(fn):
    """names bound in a function scope (not nested)"""
    names = set()
    glob = set()
    a = fn.args
    for x in a.posonlyargs + a.args + a.kwonlyargs:
        names.add(x.arg)
    if a.vararg:
        names.add(a.vararg.arg)
    if a.kwarg:
        names.add(a.kwarg.arg)

    def visit(n):
        for ch in ast.iter_child_nodes(n):
            if isinstance(ch, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(ch.name)
                for d in ch.decorator_list:
                    visit_e(d)
                continue
            if isinstance(ch, ast.Lambda):
                continue
            visit_e(ch)

    def visit_e(ch):
        if isinstance(ch, ast.Name) and isinstance(ch.ctx, (ast.Store, ast.Del)):
            names.add(ch.id)
        elif isinstance(ch, (ast.Import, ast.ImportFrom)):
            for al in ch.names:
                names.add((al.asname or al.name).split(".")[0])
        elif isinstance(ch, ast.ExceptHandler) and ch.name:
            names.add(ch.name)
        elif isinstance(ch, (ast.Global, ast.Nonlocal)):
            glob.update(ch.names)
        elif isinstance(ch, (ast.MatchAs, ast.MatchStar)) and ch.name:
            names.add(ch.name)
        visit(ch)

    body = fn.body if isinstance(fn.body, list) else [fn.body]
    for b in body:
        if isinstance(b, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(b.name)
            continue
        visit_e(b)
    return names - glob


def fl_import(node):
    return (
        isinstance(node, ast.ImportFrom) and not node.level and node.module and node.module.split(".")[0] == "floodmark"
    )


def resolve(module, name):
    """('mod',old) | ('sym',old,name) | ('keep',)"""
    full = module + "." + name
    if module in OLD:
        return ("sym", OLD[module], name)
    if full in OLD and not (module in INITS and name in INITS[module]):
        return ("mod", OLD[full])
    if module in INITS and name in INITS[module]:
        m, n = INITS[module][name]
        if m == "keep":
            return ("keep",)
        if m in OLD:
            return ("sym", OLD[m], n)
        if (m + "." + n) in OLD:
            return ("mod", OLD[m + "." + n])
    return ("keep",)


class Analysis:
    """All references in one file, by scope."""

    def __init__(self, f, newmod):
        self.f = f
        self.newmod = newmod
        self.top = {}  # local -> (resolution, node, alias, kind)
        self.uses = collections.defaultdict(list)  # id(binding) -> list of (nodekind,node,parent, scopes)
        self.all_local = set()  # names bound in any function scope or attribute comprehension etc.
        self.top_names = set()
        self.bindings = []
        self.run()

    def run(self):
        f = self.f
        for n in ast.walk(f.tree):
            for ch in ast.iter_child_nodes(n):
                ch._parent = n

        # top bindings
        def tops(body, kind):
            for n in body:
                if fl_import(n):
                    for al in n.names:
                        b = Binding(n, al, kind, resolve(n.module, al.name))
                        self.bindings.append(b)
                        self.top[b.local] = b
                elif isinstance(n, (ast.Import, ast.ImportFrom)):
                    for al in n.names:
                        self.top_names.add((al.asname or al.name).split(".")[0])
                elif isinstance(n, (ast.If, ast.Try)):
                    tops(n.body, "type" if "TYPE_CHECKING" in ast.dump(getattr(n, "test", ast.Constant(0))) else kind)
                    tops(n.orelse, kind)
                    for h in getattr(n, "handlers", []):
                        tops(h.body, kind)
                elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    self.top_names.add(n.name)
                elif isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.With)):
                    for x in ast.walk(n):
                        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
                            self.top_names.add(x.id)

        tops(f.tree.body, "top")
        self.visit(f.tree, [])

    def lookup(self, name, scopes):
        for s in reversed(scopes):
            if s["class"] and s is not scopes[-1]:
                continue
            if name in s["imports"]:
                return s["imports"][name]
            if name in s["names"]:
                return None
        return self.top.get(name)

    def visit(self, n, scopes):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            # decorators, defaults, annotations in outer scope
            for d in getattr(n, "decorator_list", []):
                self.visit(d, scopes)
            for d in n.args.defaults + [x for x in n.args.kw_defaults if x]:
                self.visit(d, scopes)
            for a in (
                n.args.posonlyargs + n.args.args + n.args.kwonlyargs + [x for x in (n.args.vararg, n.args.kwarg) if x]
            ):
                if a.annotation:
                    self.visit(a.annotation, scopes)
            if getattr(n, "returns", None):
                self.visit(n.returns, scopes)
            s = {"names": bound_names(n), "imports": {}, "class": False}
            self.all_local |= s["names"]

            # function level imports
            def imps(body):
                for x in body:
                    for y in ast.walk(x):
                        if isinstance(y, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and y is not n:
                            pass
                        if fl_import(y) and self.owner(y) is n:
                            for al in y.names:
                                b = Binding(y, al, "lazy", resolve(y.module, al.name))
                                self.bindings.append(b)
                                s["imports"][b.local] = b
                                b.fn = n

            imps(n.body if isinstance(n.body, list) else [])
            for x in n.body if isinstance(n.body, list) else [n.body]:
                self.visit(x, scopes + [s])
            return
        if isinstance(n, ast.ClassDef):
            for d in n.decorator_list + n.bases + [k.value for k in n.keywords]:
                self.visit(d, scopes)
            names = set()
            for b in n.body:
                if isinstance(b, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    names.add(b.name)
                elif isinstance(b, ast.Assign):
                    for t in b.targets:
                        if isinstance(t, ast.Name):
                            names.add(t.id)
                elif isinstance(b, ast.AnnAssign) and isinstance(b.target, ast.Name):
                    names.add(b.target.id)
            s = {"names": names, "imports": {}, "class": True}
            for x in n.body:
                self.visit(x, scopes + [s])
            return
        if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            names = set()
            for g in n.generators:
                for x in ast.walk(g.target):
                    if isinstance(x, ast.Name):
                        names.add(x.id)
            self.all_local |= names
            s = {"names": names, "imports": {}, "class": False}
            for ch in ast.iter_child_nodes(n):
                self.visit(ch, scopes + [s])
            return
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and scopes and scopes[-1]["class"]:
            return
        if isinstance(n, ast.Name):
            b = self.lookup(n.id, scopes)
            if b is not None:
                p = getattr(n, "_parent", None)
                locs = set()
                for s in scopes:
                    if not s["class"]:
                        locs |= s["names"] - set(s["imports"])
                    else:
                        pass
                b.uses.append((n, p if isinstance(p, ast.Attribute) and p.value is n else None, locs))
            return
        for ch in ast.iter_child_nodes(n):
            self.visit(ch, scopes)

    def owner(self, y):
        p = getattr(y, "_parent", None)
        while p is not None and not isinstance(p, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)):
            p = getattr(p, "_parent", None)
        return p


class Binding:
    def __init__(self, node, al, kind, res):
        self.node = node
        self.alias = al
        self.kind = kind
        self.res = res
        self.local = al.asname or al.name
        self.uses = []
        self.out = []  # list of (module_dotted_from, name, asname)
        self.fn = None


def split_mod(new):  # new path -> (package dotted, basename)
    d = dotted(new)
    return d.rsplit(".", 1)


def process(f, newmod, taken_top):
    """Edit references in file f, which becomes part of newmod (None: outside file). Returns top imports set."""
    an = Analysis(f, newmod)
    moved_self = None
    top_imports = set()
    type_imports = set()
    # own top-level symbols moved elsewhere or renamed inside this file
    own_defs = top_defs(f.tree) if f.old else {}
    for b in an.bindings:
        outs = set()
        if b.res[0] == "keep":
            outs.add((b.node.module, b.alias.name, b.alias.asname))
        elif b.res[0] == "sym":
            _, o, name = b.res
            n2, m2 = newname(o, name), new_of(o, name)
            here = (m2 == newmod) and newmod is not None
            local = b.alias.asname if b.alias.asname and b.alias.asname != name else None
            if here:
                # bare name n2; uses of b.local -> n2
                if b.local != n2:
                    for u, _, locs in b.uses:
                        if n2 in locs:
                            problems.append((f.path, u.lineno, "shadow", n2))
                        f.edit(*f.span(u), n2)
            else:
                if local is None and n2 != name and b.alias.asname is None:
                    for u, _, locs in b.uses:
                        if n2 in locs:
                            problems.append((f.path, u.lineno, "shadow", n2))
                        f.edit(*f.span(u), n2)
                outs.add(
                    (
                        dotted(m2),
                        n2,
                        b.alias.asname
                        if b.alias.asname and (b.alias.asname != n2 or f.path.endswith("__init__.py"))
                        else None,
                    )
                )
                if b.alias.asname and b.alias.asname == n2 and not f.path.endswith("__init__.py"):
                    pass
        else:
            _, o = b.res
            groups = collections.defaultdict(list)
            whole = False
            for u, attr, locs in b.uses:
                if attr is None:
                    whole = True
                    groups[MODULE[o]].append((u, None, locs))
                else:
                    groups[new_of(o, attr.attr)].append((u, attr, locs))
            if not b.uses:
                groups[MODULE[o]] = []
            for m2, us in groups.items():
                here = (m2 == newmod) and newmod is not None
                if here:
                    for u, attr, locs in us:
                        if attr is None:
                            problems.append((f.path, u.lineno, "whole module used inside itself", o))
                            continue
                        n2 = newname(o, attr.attr)
                        if n2 in locs:
                            problems.append((f.path, u.lineno, "shadow-here", n2, o))
                        f.edit(*f.span(attr), n2)
                else:
                    base = m2.rsplit("/", 1)[-1]
                    busy = (
                        an.all_local
                        | an.top_names
                        | set(
                            k
                            for k, v in an.top.items()
                            if v is not b and not (v.res[0] == "mod" and MODULE[v.res[1]] == m2)
                        )
                    )
                    cand = [base] if b.alias.asname is None or b.alias.asname == b.alias.name else [b.alias.asname]
                    cand += [base, b.local, base + "_module"]
                    ok = [
                        c
                        for c in cand
                        if c not in busy and (m2, c) not in () and taken_top.get(c, ("mod", m2)) == ("mod", m2)
                    ]
                    if not ok:
                        problems.append((f.path, b.node.lineno, "no local name for", m2))
                        ok = [base + "_module"]
                    L = ok[0]
                    taken_top[L] = ("mod", m2)
                    for u, attr, locs in us:
                        f.edit(*f.span(u), L)
                        if attr is not None and newname(o, attr.attr) != attr.attr:
                            s, e = f.span(attr)
                            f.edit(e - len(attr.attr), e, newname(o, attr.attr))
                    p, bn = split_mod(m2)
                    outs.add((p, bn, L if L != bn else None))
        if b.kind == "top":
            top_imports |= outs
        elif b.kind == "type":
            type_imports |= outs
        b.out = sorted(outs, key=str)
    # setattr(mod,"attr") with renames
    for n in ast.walk(f.tree):
        if (
            isinstance(n, ast.Call)
            and len(n.args) >= 2
            and isinstance(n.args[0], ast.Name)
            and isinstance(n.args[1], ast.Constant)
            and isinstance(n.args[1].value, str)
        ):
            b = an.top.get(n.args[0].id)
            if b and b.res[0] == "mod":
                o = b.res[1]
                v = n.args[1].value
                if (o, v) in SYMBOL or newname(o, v) != v:
                    problems.append((f.path, n.lineno, "setattr of moved/renamed", o, v))
    # own renamed/moved symbols used in this file
    if f.old:
        for n in ast.walk(f.tree):
            pass
    # lazy import statements
    stmts = collections.defaultdict(list)
    for b in an.bindings:
        stmts[id(b.node)].append(b)
    for bs in stmts.values():
        node = bs[0].node
        if bs[0].kind == "lazy":
            outs = [o for b in bs for o in b.out]
            s, e = f.span(node)
            ind = " " * node.col_offset
            if outs:
                f.edit(s, e, ("\n" + ind).join(fmt_imports(outs)))
            else:
                p = node._parent
                body = [x for x in getattr(p, "body", [])]
                if body == [node]:
                    f.edit(s, e, "pass")
                else:
                    f.edit(f.starts[node.lineno - 1], f.starts[node.end_lineno], "")
    f.an = an
    return top_imports, type_imports


def fmt_imports(outs):
    by = collections.defaultdict(set)
    for m, n, a in outs:
        by[m].add(n if not a else f"{n} as {a}")
    return [f"from {m} import {', '.join(sorted(v))}" for m, v in sorted(by.items())]


def top_defs(tree):
    d = {}
    for n in tree.body:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            d[n.name] = n
        elif isinstance(n, ast.Assign):
            for t in n.targets:
                for x in ast.walk(t):
                    if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
                        d[x.id] = n
        elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
            d[n.target.id] = n
        elif isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test):
            for y in n.body:
                if isinstance(y, ast.Assign):
                    for t in y.targets:
                        if isinstance(t, ast.Name):
                            d[t.id] = n
    return d


def own_renames(f):
    """rename/move own top-level symbols; returns extra imports needed by this file's parts in other modules"""
    defs = top_defs(f.tree)
    o = f.old
    ren = {n: newname(o, n) for n in defs if newname(o, n) != n}
    if not ren:
        return
    an = f.an

    # walk names with scope knowledge
    def visit(n, locs):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for d in getattr(n, "decorator_list", []):
                visit(d, locs)
            for d in n.args.defaults + [x for x in n.args.kw_defaults if x]:
                visit(d, locs)
            for a in (
                n.args.posonlyargs + n.args.args + n.args.kwonlyargs + [x for x in (n.args.vararg, n.args.kwarg) if x]
            ):
                if a.annotation:
                    visit(a.annotation, locs)
            if getattr(n, "returns", None):
                visit(n.returns, locs)
            if not isinstance(n, ast.Lambda) and not locs["fn"] and isinstance(n._parent, ast.Module) and n.name in ren:
                rename_def(n)
            l = {"fn": True, "names": locs["names"] | bound_names(n)}
            for x in n.body if isinstance(n.body, list) else [n.body]:
                visit(x, l)
            return
        if isinstance(n, ast.ClassDef):
            if isinstance(n._parent, ast.Module) and n.name in ren:
                rename_def(n)
        if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            names = {x.id for g in n.generators for x in ast.walk(g.target) if isinstance(x, ast.Name)}
            l = {"fn": True, "names": locs["names"] | names}
            for ch in ast.iter_child_nodes(n):
                visit(ch, l)
            return
        if isinstance(n, (ast.AnnAssign, ast.Assign)) and isinstance(n._parent, ast.ClassDef):
            if n.value is not None:
                visit(n.value, locs)
            if isinstance(n, ast.AnnAssign):
                visit(n.annotation, locs)
            return
        if isinstance(n, ast.Name) and n.id in ren and n.id not in locs["names"]:
            if ren[n.id] in locs["names"]:
                problems.append((f.path, n.lineno, "shadow-own", ren[n.id]))
            f.edit(*f.span(n), ren[n.id])
        for ch in ast.iter_child_nodes(n):
            visit(ch, locs)

    def rename_def(n):
        line = f.lines[n.lineno - 1]
        m = re.search(r"\b(def|class)\s+" + re.escape(n.name) + r"\b", line)
        s = f.starts[n.lineno - 1] + m.end() - len(n.name)
        f.edit(s, s + len(n.name), ren[n.name])

    visit(f.tree, {"fn": False, "names": set()})


def chunks(f):
    """(names, text, definition-time names, node) per top-level statement without imports and docstring."""
    out = []
    body = f.tree.body
    prev_end = 0
    i = 0
    first_import_seen = False
    while i < len(body):
        n = body[i]
        start_line = n.decorator_list[0].lineno if getattr(n, "decorator_list", None) else n.lineno
        end = f.starts[n.end_lineno]
        j = i + 1
        # attribute docstrings
        while (
            j < len(body)
            and isinstance(body[j], ast.Expr)
            and isinstance(body[j].value, ast.Constant)
            and isinstance(body[j].value.value, str)
            and i != 0
        ):
            end = f.starts[body[j].end_lineno]
            j += 1
        is_doc = (
            i == 0 and isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)
        )
        is_imp = isinstance(n, (ast.Import, ast.ImportFrom))
        is_tc = isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
        if is_doc:
            out.append(("doc", set(), n.value.value, set(), n))
        elif is_imp:
            if fl_import(n):
                pass
            else:
                out.append(("imp", set(), f.text[f.off(n.lineno, n.col_offset) : f.starts[n.end_lineno]], set(), n))
        elif is_tc:
            rest = []
            for y in n.body:
                if fl_import(y):
                    continue
                if isinstance(y, (ast.Import, ast.ImportFrom)):
                    out.append(
                        ("timp", set(), f.text[f.off(y.lineno, y.col_offset) : f.starts[y.end_lineno]], set(), y)
                    )
                else:
                    rest.append(f.render(f.starts[y.lineno - 1], f.starts[y.end_lineno]))
            if rest:
                out.append(("tcode", {k for k, v in top_defs(f.tree).items() if v is n}, "".join(rest), set(), n))
        else:
            text = f.render(prev_end, end)
            names = set()
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names = {n.name}
            else:
                for x in ast.walk(n):
                    if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
                        names.add(x.id)
            out.append(("code", names, text, deftime(n), n))
        prev_end = end
        i = j
    tail = f.text[prev_end:]
    if tail.strip():
        problems.append((f.path, 0, "tail comment", tail))
    return out


def deftime(n):
    names = set()

    def visit(x, top=True):
        if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for d in x.decorator_list:
                visit(d)
            for d in x.args.defaults + [y for y in x.args.kw_defaults if y]:
                visit(d)
            return
        if isinstance(x, ast.Lambda):
            return
        if isinstance(x, ast.AnnAssign):
            if x.value:
                visit(x.value)
            return
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load):
            names.add(x.id)
        for ch in ast.iter_child_nodes(x):
            visit(ch)

    visit(n)
    return names


def main():
    by = collections.OrderedDict()
    for o, n in MODULE.items():
        by.setdefault(n, []).append(o)
    global INPLACE
    INPLACE = [o for n, os_ in by.items() for o in os_ if os_ == [n]]
    for o in INPLACE:
        del by[o]
    files = {o: File(SRC + o + ".py", o) for o in MODULE if o not in set(INPLACE)}
    out = {}
    # names defined per new module, for conflicts
    newdefs = collections.defaultdict(dict)
    for o, f in files.items():
        for name in top_defs(f.tree):
            nm = newname(o, name)
            m = new_of(o, name)
            if nm in newdefs[m] and newdefs[m][nm][0] != o:
                o2, n2 = newdefs[m][nm]
                a = ast.dump(top_defs(files[o2].tree)[n2])
                b = ast.dump(top_defs(f.tree)[name])
                if a != b:
                    problems.append((m, 0, "collision", nm, o, o2))
            newdefs[m].setdefault(nm, (o, name))
    parts = collections.defaultdict(
        lambda: {"doc": [], "imp": [], "timp": [], "tcode": [], "code": [], "fl": set(), "tfl": set()}
    )
    taken = collections.defaultdict(dict)
    for m, d in newdefs.items():
        for nm in d:
            taken[m][nm] = ("own", nm)
    # names bound by sym imports must be unique per new module
    for m, os_ in by.items():
        for o in os_:
            f = files[o]
            a = Analysis(f, m)
            loc = a.all_local
    for m, os_ in by.items():
        for o in os_:
            f = files[o]
            tl, ty = process(f, m, taken[m])
            own_renames(f)
            an = f.an
            need = collections.defaultdict(set)
            tneed = collections.defaultdict(set)
            cs = chunks(f)
            defs = top_defs(f.tree)
            for kind, names, text, dt, node in cs:
                homes = {new_of(o, n) for n in names} or {m}
                if len(homes) > 1:
                    problems.append((f.path, node.lineno, "split statement", names))
                home = sorted(homes)[0]
                if kind == "doc":
                    parts[m]["doc"].append((o, text))
                    continue
                if kind in ("imp", "timp"):
                    parts[m][kind].append(text)
                    for h in {new_of(o, n) for n in defs} - {m}:
                        parts[h][kind].append(text)
                    continue
                if kind == "tcode":
                    parts[home]["tcode"].append(text)
                    continue
                dt2 = set()
                for nn in ast.parse(text.strip("\n")).body:
                    dt2 |= deftime(nn)
                parts[home]["code"].append(({newname(o, n) for n in names}, text, dt2, o, ast.dump(node)))
                # cross references of split symbols
                used = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
                for n in defs:
                    if new_of(o, n) != home and n in used:
                        parts[home]["fl"].add((dotted(new_of(o, n)), newname(o, n), None))
            parts[m]["fl"] |= tl
            parts[m]["tfl"] |= ty
            for h in {new_of(o, n) for n in defs} - {m}:
                parts[h]["fl"] |= {x for x in tl}
                parts[h]["tfl"] |= ty
    # render
    results = {}
    for m, p in parts.items():
        order = sort_code(p["code"], m)
        doc = DOC.get(m)
        if doc is None:
            doc = p["doc"][0][1] if p["doc"] else "TODO"
        own = dotted(m)
        fl = {x for x in p["fl"] if x[0] != own and not (x[0] + "." + x[1] == own)}
        tfl = {x for x in p["tfl"] if x[0] != own and not (x[0] + "." + x[1] == own)}
        imps = dedupe(p["imp"])
        timps = dedupe(p["timp"])
        check_conflicts(m, fl | tfl, newdefs[m])
        s = '"""' + doc.strip() + ("\n" if "\n" in doc.strip() else "") + '"""\n\n'
        fut = [i for i in imps if "__future__" in i]
        imps = [i for i in imps if "__future__" not in i]
        s += "".join(fut) + "\n"
        s += "".join(i if i.endswith("\n") else i + "\n" for i in imps)
        s += "\n" + "\n".join(fmt_imports(fl)) + "\n"
        if timps or tfl or p["tcode"]:
            if "TYPE_CHECKING" not in "".join(imps):
                s += "from typing import TYPE_CHECKING\n"
            s += (
                "\nif TYPE_CHECKING:\n"
                + "".join(
                    "    " + l.strip("\n").replace("\n", "\n    ") + "\n" for l in [x for x in timps] + fmt_imports(tfl)
                )
                + "".join(p["tcode"])
                + "\n"
            )
        seen = set()
        for names, text, dt, o, dump in order:
            if dump in seen and names:
                continue
            seen.add(dump)
            s += text.rstrip("\n") + "\n" if not text.startswith("\n") else text.rstrip("\n") + "\n"
        results[m] = s
    return files, results, by


def check_conflicts(m, fl, defs):
    loc = collections.defaultdict(set)
    for mod, n, a in fl:
        loc[a or n].add((mod, n))
    for l, s in loc.items():
        if len(s) > 1:
            problems.append((m, 0, "import conflict", l, s))
        if l in defs:
            problems.append((m, 0, "import shadows def", l, s))


def dedupe(l):
    out = []
    for x in l:
        x = x if x.endswith("\n") else x + "\n"
        if x not in out:
            out.append(x)
    return out


def sort_code(code, m):
    where = {}
    for i, c in enumerate(code):
        for n in c[0]:
            where.setdefault(n, i)
    done = []
    state = {}

    def go(i):
        if state.get(i) == 2:
            return
        if state.get(i) == 1:
            problems.append((m, 0, "definition cycle", code[i][0]))
            return
        state[i] = 1
        for n in sorted(code[i][2]):
            j = where.get(n)
            if j is not None and j != i:
                go(j)
        state[i] = 2
        done.append(code[i])

    for i in range(len(code)):
        go(i)
    return done


def rewrite_strings():
    """Dotted names and paths in strings, mutants, limits and docs."""
    moved = {o: n for o, n in MODULE.items() if o != n}
    dot = {"floodmark." + o.replace("/", "."): (o, "floodmark." + n.replace("/", ".")) for o, n in moved.items()}
    rx = re.compile("|".join(re.escape(k) for k in sorted(dot, key=len, reverse=True)))
    pat = re.compile("(?:" + rx.pattern + r")(?![\w])(?:\.(\w+))?")

    def sub(m):
        k = m[0] if m[1] is None else m[0][: -len(m[1]) - 1]
        o, n = dot[k]
        if m[1] is None:
            return n
        return n + "." + RENAME.get((o, m[1]), m[1])

    paths = {o + ".py": n + ".py" for o, n in moved.items()}
    prx = re.compile(
        r"(?<![\w/])(?:src/floodmark/)?("
        + "|".join(re.escape(k) for k in sorted(paths, key=len, reverse=True))
        + r")(?![\w])"
    )

    def psub(m):
        return m[0].replace(m[1], paths[m[1]])

    mods = {o: n for o, n in moved.items() if "/" in o}
    for base in ("tests", "bench", "docs", "tools", "examples", "CONTRIBUTING.md", "src", "pyproject.toml", "Makefile"):
        top = os.path.join(ROOT, base)
        fs = [top] if os.path.isfile(top) else [os.path.join(d, f) for d, _, x in os.walk(top) for f in x]
        for f in fs:
            if not f.endswith((".py", ".md", ".toml", ".txt", "Makefile", ".json")) or "__pycache__" in f:
                continue
            s = open(f, encoding="utf-8").read()
            t = pat.sub(sub, s)
            t = prx.sub(psub, t)
            if t != s:
                open(f, "w", encoding="utf-8").write(t)
                print("strings", f)


if __name__ == "__main__":
    files, results, by = main()
    for p in problems:
        print("PROBLEM", p)
    print(len(problems), "problems", len(results), "modules")
    if "--write" not in sys.argv:
        sys.exit()
    # outside files first (while old sources exist)
    outside = []
    for base in ("tests", "bench", "tools", "examples", "docs"):
        for d, _, fs in os.walk(ROOT + "/" + base):
            if "__pycache__" in d:
                continue
            for n in fs:
                if n.endswith(".py"):
                    outside.append(os.path.join(d, n))
    n0 = len(problems)
    outside += [SRC + o + ".py" for o in INPLACE]
    for path in outside:
        f = File(path)
        if "floodmark" not in f.text:
            continue
        process(f, None, {})
        an = f.an
        stm = collections.OrderedDict()
        for b in an.bindings:
            if b.kind != "lazy":
                stm.setdefault(id(b.node), []).append(b)
        for bs in stm.values():
            node = bs[0].node
            s, e = f.span(node)
            ind = " " * node.col_offset
            outs = [o for b in bs for o in b.out]
            noqa = ""
            f.edit(s, e, ("\n" + ind).join(fmt_imports(outs)))
        open(path, "w", encoding="utf-8").write(f.render(0, len(f.text)))
    for p in problems[n0:]:
        print("PROBLEM", p)
    # inits
    for m in INITS:
        path = SRC + m[len("floodmark") :].replace(".", "/") + "/__init__.py"
        if not os.path.exists(path):
            continue
        f = File(path)
        process(f, None, {})
        stm = {}
        for b in f.an.bindings:
            stm.setdefault(id(b.node), []).append(b)
        for bs in stm.values():
            node = bs[0].node
            s, e = f.span(node)
            if bs[0].kind == "lazy":
                continue
            f.edit(s, e, ("\n" + " " * node.col_offset).join(fmt_imports([o for b in bs for o in b.out])))
        open(path, "w").write(f.render(0, len(f.text)))
    keep_init = set()
    for o in MODULE:
        if o not in set(INPLACE):
            os.remove(SRC + o + ".py")
    for m, s in results.items():
        os.makedirs(os.path.dirname(SRC + m + ".py"), exist_ok=True)
        open(SRC + m + ".py", "w", encoding="utf-8").write(s)
    rewrite_strings()
