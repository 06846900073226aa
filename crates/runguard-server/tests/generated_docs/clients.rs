//! The methods of the Python and TypeScript clients, one a guard route, made from the routes' tables of fields.

use runguard_guards::guard::{ROUTES, Route};
use runguard_guards::input::{Field, Kind, REQUEST_ID};
use std::fmt::Write as _;

const COMMAND: &str = "UPDATE_DOCS=1 cargo test -p runguard-server --test generated_docs";

/// A route by its path below `/guard/`.
fn end_of(route: &Route) -> &'static str {
    route.path.trim_start_matches("/guard/")
}

fn parts(route: &Route) -> impl Iterator<Item = &'static str> {
    end_of(route).split(['/', '-'])
}

/// `kbRequeryCheck`
fn camel(route: &Route) -> String {
    let pascal = pascal(route);
    pascal[..1].to_lowercase() + &pascal[1..]
}

/// `KbRequeryCheck`
fn pascal(route: &Route) -> String {
    parts(route).map(|part| part[..1].to_uppercase() + &part[1..]).collect()
}

fn python_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Id | Kind::Name | Kind::Label | Kind::Text | Kind::Hash | Kind::OneOf(_) => "str",
        Kind::Fraction | Kind::Confidence | Kind::Dollars | Kind::Amount => "float",
        Kind::Whole(_) => "int",
        Kind::Flag => "bool",
        Kind::Any => "Any",
        Kind::Names => "List[str]",
        Kind::Scopes | Kind::Steps => "List[Dict[str, Any]]",
    }
}

fn python_parameter(field: &Field) -> String {
    match (python_type(field.kind), field.required) {
        (kind, true) => format!("{}: {kind}", field.name),
        ("Any", false) => format!("{}: Any = None", field.name),
        (kind, false) => format!("{}: Optional[{kind}] = None", field.name),
    }
}

/// Required fields come first, in the order of the table, and one optional field may follow them without its name.
pub(crate) fn python() -> String {
    let mut out = format!(
        "\"\"\"One method per guard route. Made from the service's tables, not by hand: `{COMMAND}`.\"\"\"\n\n\
         from __future__ import annotations\n\n\
         from typing import Any, Dict, List, Optional\n\n\
         Answer = Dict[str, Any]\n\n\n\
         class GuardRoutes:\n    \"\"\"What every client can ask the guards. Fields that are None are left out; fields newer than this package are passed on.\"\"\"\n\n    \
         def post(self, path: str, /, **body: Any) -> Answer:\n        \"\"\"Asks a guard.\"\"\"\n        raise NotImplementedError\n"
    );
    for route in ROUTES {
        let (required, optional): (Vec<&Field>, Vec<&Field>) = route.fields.iter().partition(|field| field.required);
        let (in_order, by_name) = optional.split_at(optional.len().min(1));
        let _ = write!(out, "\n    def {}(\n        self,\n", parts(route).collect::<Vec<_>>().join("_"));
        for field in required.iter().chain(in_order) {
            let _ = writeln!(out, "        {},", python_parameter(field));
        }
        out.push_str("        *,\n");
        for field in by_name.iter().chain([&&REQUEST_ID]) {
            let _ = writeln!(out, "        {},", python_parameter(field));
        }
        let _ = write!(
            out,
            "        **fields: Any,\n    ) -> Answer:\n        \"\"\"{}\"\"\"\n        return self.post(\n            \"{}\",\n",
            route.summary, route.path
        );
        for field in required.iter().chain(&optional).chain([&&REQUEST_ID]) {
            let _ = writeln!(out, "            {0}={0},", field.name);
        }
        out.push_str("            **fields,\n        )\n");
    }
    out
}

fn typescript_type(kind: Kind) -> String {
    match kind {
        Kind::Id | Kind::Name | Kind::Label | Kind::Text | Kind::Hash => "string".to_owned(),
        Kind::OneOf(choices) => choices.iter().map(|choice| format!("'{choice}'")).collect::<Vec<_>>().join(" | "),
        Kind::Fraction | Kind::Confidence | Kind::Dollars | Kind::Amount | Kind::Whole(_) => "number".to_owned(),
        Kind::Flag => "boolean".to_owned(),
        Kind::Any => "unknown".to_owned(),
        Kind::Names => "string[]".to_owned(),
        Kind::Scopes => "BudgetScope[]".to_owned(),
        Kind::Steps => "RunStep[]".to_owned(),
    }
}

pub(crate) fn typescript() -> String {
    let mut out = format!(
        "/** One method per guard route. Made from the service's tables, not by hand: `{COMMAND}`. */\n\
         import type {{ Answer, BudgetScope, RequestOptions, RunStep }} from './client.js'\n"
    );
    for route in ROUTES {
        let _ = write!(out, "\n/** {} */\nexport interface {}Request {{\n", route.summary, pascal(route));
        for field in route.fields.iter().chain([&REQUEST_ID]) {
            let kind = typescript_type(field.kind);
            let (mark, kind) = match (field.required, field.kind) {
                (true, _) => ("", kind),
                (false, Kind::Any) => ("?", kind),
                (false, _) => ("?", format!("{kind} | null")),
            };
            let _ = writeln!(out, "  /** {} */\n  {}{mark}: {kind}", field.about, field.name);
        }
        out.push_str("}\n");
    }
    out.push_str(
        "\nexport abstract class GuardRoutes {\n  protected abstract ask(route: string, request: object, options?: RequestOptions): Promise<Answer>\n",
    );
    for route in ROUTES {
        let _ = write!(
            out,
            "\n  /** {} */\n  {}(request: {}Request, options?: RequestOptions): Promise<Answer> {{\n    return this.ask('{}', request, options)\n  }}\n",
            route.summary,
            camel(route),
            pascal(route),
            end_of(route)
        );
    }
    out.push_str("}\n");
    out
}
