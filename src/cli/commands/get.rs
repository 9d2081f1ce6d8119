//! `get`: the server's tables as they are, or objects in another form; with `-w` every change.
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::args::Get;
use crate::cli::failure::{Exit, Failure};
use crate::cli::jsonpath::Template;
use crate::cli::kinds::{Resource, query};
use crate::cli::output::{Output, list_of, tidy, with_kind};
use crate::cli::session::{Session, Tail, Target, selection};
use crate::cli::table::{self, Layout, Printer};
use crate::cli::wire::{Change, Form};

pub(crate) async fn run(session: &mut Session<'_>, args: &Get) -> Result<(), Failure> {
    let output = Output::parse(args.output.as_deref())?;
    let sort = args.sort_by.as_deref().map(Template::parse).transpose();
    let sort = sort.map_err(|error| Failure::usage(error.to_string()))?;
    let targets = session.targets(&args.targets).await?;
    if let Some(target) = targets.iter().find(|t| t.name.is_some()) {
        refuse_name_with_selection(args, target)?;
    }
    let watched = args.watch || args.watch_only;
    let groups = grouped(targets);
    match (watched, &groups[..]) {
        (true, [group]) => watch(session, args, &output, group).await,
        (true, _) => Err(Failure::usage("only one kind can be watched at a time")),
        (false, groups) if output.is_table() => tables(session, args, &output, sort.as_ref(), groups).await,
        (false, groups) => objects(session, args, &output, sort.as_ref(), groups).await,
    }
}

/// One kind and the names asked for; all of them when there are none.
struct Group {
    resource: Resource,
    names: Vec<String>,
}

fn grouped(targets: Vec<Target>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for Target { resource, name } in targets {
        let known =
            groups.iter().position(|g| g.resource == resource && name.is_some() && !g.names.is_empty());
        match known {
            Some(at) => groups[at].names.extend(name),
            None => groups.push(Group { resource, names: name.into_iter().collect() }),
        }
    }
    groups
}

fn refuse_name_with_selection(args: &Get, target: &Target) -> Result<(), Failure> {
    let chosen = &args.selection;
    if chosen.selects() {
        return Err(Failure::usage("a name and a selector exclude each other"));
    }
    if chosen.all_namespaces && target.resource.namespaced {
        return Err(Failure::usage("a name cannot be looked up in all namespaces")
            .try_this("name the namespace with -n, or select with --field-selector metadata.name=NAME"));
    }
    Ok(())
}

/// What one kind has to show, with the failures of single names reported and passed over.
async fn fetch(
    session: &mut Session<'_>,
    args: &Get,
    group: &Group,
    (form, extra): (Form, &[(&str, &str)]),
) -> Result<Vec<Value>, Failure> {
    let chosen = &args.selection;
    if group.names.is_empty() {
        let mut parameters = selection(chosen.selector.as_deref(), chosen.field_selector.as_deref());
        parameters.extend_from_slice(extra);
        let path = group.resource.collection(session.scope(chosen.all_namespaces).as_deref());
        return Ok(vec![session.wire.list(&path, &parameters, form).await?]);
    }
    let namespace = session.namespace();
    let mut found = Vec::new();
    for name in &group.names {
        let path = format!("{}{}", group.resource.item(&namespace, name), query(extra));
        match session.wire.send(Method::GET, &path, None, form).await {
            Ok(answer) => {
                found.push(answer.body);
            }
            Err(failure) if failure.exit == Exit::NotFound && args.ignore_not_found => {}
            Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
            Err(failure) => session.report(&failure),
        }
    }
    Ok(found)
}

async fn tables(
    session: &mut Session<'_>,
    args: &Get,
    output: &Output,
    sort: Option<&Template>,
    groups: &[Group],
) -> Result<(), Failure> {
    // Sorting looks into whole objects, which a table carries only when asked.
    let extra: &[(&str, &str)] = if sort.is_some() { &[("includeObject", "Object")] } else { &[] };
    let several = groups.len() > 1;
    let mut printed = 0;
    for group in groups {
        let mut whole: Option<Value> = None;
        for answer in fetch(session, args, group, (Form::Table, extra)).await? {
            let mut answer = table::from_answer(answer, Timestamp::now());
            match &mut whole {
                None => whole = Some(answer),
                Some(first) => {
                    if let (Some(all), Some(more)) =
                        (first["rows"].as_array_mut(), answer["rows"].as_array_mut())
                    {
                        all.append(more);
                    }
                }
            }
        }
        let Some(mut table) = whole.filter(|table| !table::rows_of(table).is_empty()) else { continue };
        if let (Some(path), Some(rows)) = (sort, table["rows"].as_array_mut()) {
            sort_by(rows, path, |row| &row["object"]);
        }
        if printed > 0 {
            session.say("")?;
        }
        let prefix = several.then(|| group.resource.full_label(""));
        let mut layout = layout(args, output, &group.resource);
        layout.prefix = prefix.as_deref().map(|p| p.trim_end_matches('/'));
        Printer::default().table(session.terminal.out, &table, layout)?;
        printed += 1;
    }
    if printed == 0 && session.worst() == Exit::Done && !args.ignore_not_found {
        session.note(nothing_found(session, args, groups));
    }
    Ok(())
}

fn nothing_found(session: &Session<'_>, args: &Get, groups: &[Group]) -> String {
    match session.scope(args.selection.all_namespaces) {
        Some(namespace) if groups.iter().all(|g| g.resource.namespaced) => {
            format!("No resources found in {namespace} namespace.")
        }
        _ => "No resources found.".to_owned(),
    }
}

fn layout<'a>(args: &Get, output: &Output, resource: &Resource) -> Layout<'a> {
    Layout {
        wide: *output == Output::Table { wide: true },
        with_namespace: args.selection.all_namespaces && resource.namespaced,
        with_labels: args.show_labels,
        no_headers: args.no_headers,
        ..Layout::default()
    }
}

async fn objects(
    session: &mut Session<'_>,
    args: &Get,
    output: &Output,
    sort: Option<&Template>,
    groups: &[Group],
) -> Result<(), Failure> {
    let mut items = Vec::new();
    let mut single = groups.len() == 1;
    for group in groups {
        single &= group.names.len() == 1;
        for mut answer in fetch(session, args, group, (Form::Object, &[])).await? {
            let complete = |object| tidy(with_kind(object, &group.resource));
            match answer["items"].take() {
                Value::Array(all) if group.names.is_empty() => items.extend(all.into_iter().map(complete)),
                items_field => {
                    if !items_field.is_null() {
                        answer["items"] = items_field;
                    } else if let Some(fields) = answer.as_object_mut() {
                        fields.remove("items");
                    }
                    items.push(complete(answer));
                }
            }
        }
    }
    if let Some(path) = sort {
        sort_by(&mut items, path, |item| item);
    }
    let value = match (single, items.len()) {
        (true, 0) => return Ok(()),
        (true, 1) => items.remove(0),
        _ => list_of(&items),
    };
    print(session, output, groups, &value)
}

fn print(session: &mut Session<'_>, output: &Output, groups: &[Group], value: &Value) -> Result<(), Failure> {
    let label = |item: &Value| {
        let name = item["metadata"]["name"].as_str().unwrap_or_default();
        let resource = groups.iter().map(|g| &g.resource).find(|r| item["kind"] == r.kind.as_str());
        resource.map_or_else(|| name.to_owned(), |resource| resource.full_label(name))
    };
    output.print(session.terminal.out, value, &label)
}

async fn watch(session: &mut Session<'_>, args: &Get, output: &Output, group: &Group) -> Result<(), Failure> {
    let by_name = match &group.names[..] {
        [] => None,
        [name] => Some(format!("metadata.name={name}")),
        _ => return Err(Failure::usage("only one object, or all of a kind, can be watched")),
    };
    let chosen = &args.selection;
    let fields = by_name.as_deref().or(chosen.field_selector.as_deref());
    let parameters = selection(chosen.selector.as_deref(), fields);
    let path = group.resource.collection(session.scope(chosen.all_namespaces).as_deref());
    let form = if output.is_table() { Form::Table } else { Form::Object };
    let mut view = View {
        layout: layout(args, output, &group.resource),
        events: args.output_watch_events,
        printer: Printer::default(),
        columns: Value::Null,
    };
    let mut show = !args.watch_only;
    loop {
        let list = session.wire.list(&path, &parameters, form).await?;
        if show {
            first_state(session, output, group, &mut view, &list)?;
        }
        show = true;
        let mut tail = Tail::new(&list);
        while let Some((change, object)) = tail.next(&session.wire, &path, &parameters, form).await? {
            if change == Change::Bookmark {
                continue;
            }
            if output.is_table() {
                view.show(session, change, object)?;
            } else {
                one_object(session, output, group, (view.events.then_some(change), object))?;
            }
            session.terminal.out.flush()?;
        }
    }
}

fn first_state(
    session: &mut Session<'_>,
    output: &Output,
    group: &Group,
    view: &mut View<'_>,
    list: &Value,
) -> Result<(), Failure> {
    if output.is_table() {
        if !table::rows_of(list).is_empty() || list["items"].as_array().is_some_and(|items| !items.is_empty())
        {
            view.show(session, Change::Added, list.clone())?;
        }
    } else {
        for item in list["items"].as_array().into_iter().flatten() {
            one_object(session, output, group, (view.events.then_some(Change::Added), item.clone()))?;
        }
    }
    session.terminal.out.flush()?;
    Ok(())
}

fn one_object(
    session: &mut Session<'_>,
    output: &Output,
    group: &Group,
    (change, object): (Option<Change>, Value),
) -> Result<(), Failure> {
    let object = tidy(with_kind(object, &group.resource));
    let value = match change {
        Some(change) => json!({ "type": change.as_str(), "object": object }),
        None => object,
    };
    if *output == Output::Yaml {
        session.say("---")?;
    }
    print(session, output, std::slice::from_ref(group), &value)?;
    if matches!(output, Output::JsonPath(_)) {
        session.say("")?;
    }
    Ok(())
}

/// A watched table: the columns come with the first event only.
struct View<'a> {
    layout: Layout<'a>,
    events: bool,
    printer: Printer,
    columns: Value,
}

impl View<'_> {
    fn show(&mut self, session: &mut Session<'_>, change: Change, answer: Value) -> Result<(), Failure> {
        let mut table = table::from_answer(answer, Timestamp::now());
        if table["columnDefinitions"].as_array().is_some_and(|columns| !columns.is_empty()) {
            self.columns = table["columnDefinitions"].clone();
        } else {
            table["columnDefinitions"] = self.columns.clone();
        }
        self.layout.event = self.events.then_some(change.as_str());
        self.printer.table(session.terminal.out, &table, self.layout)?;
        Ok(())
    }
}

/// Sorts by a field: numbers by size, everything else as text, missing ones first.
fn sort_by(items: &mut [Value], path: &Template, object: impl Fn(&Value) -> &Value) {
    let key = |item: &Value| path.find(object(item)).first().map(|found| (*found).clone());
    items.sort_by(|a, b| match (key(a), key(b)) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(std::cmp::Ordering::Equal)
        }
        (a, b) => a.map(|v| v.to_string()).cmp(&b.map(|v| v.to_string())),
    });
}
