// A form made of a JSON Schema, and the value that it holds: objects, arrays, choices, numbers, yes and no. What is deeper
// than LEVELS, or of a kind that has no field here (`oneOf`, `$ref`, …), is written as JSON.

import { button, make, mint, said } from "./dom.js";
import { cut, oneLine } from "./text.js";

const LEVELS = 6;
const FIELDS = 200;

// { element, value() }; value() throws where a field holds what it must not.
export function field(name, schema, required, level = 0) {
  const own = typeof schema === "object" && schema !== null ? schema : {};
  const kinds = Array.isArray(own.type) ? own.type.filter((kind) => kind !== "null") : [own.type];
  const type = kinds.length === 1 ? kinds[0] : undefined;
  if ("const" in own) return choice(name, { ...own, enum: [own.const] }, required);
  if (Array.isArray(own.enum) && own.enum.length) return choice(name, own, required);
  const isPlain = !own.oneOf && !own.anyOf && !own.allOf && !own.$ref;
  if (isPlain && level < LEVELS && isGroup(own, type)) return group(name, own, required, level);
  if (isPlain && level < LEVELS && type === "array" && !own.prefixItems) return list(name, own, required, level);
  if (isPlain && type === "boolean") return choice(name, { ...own, enum: [true, false] }, required);
  if (isPlain && (type === "number" || type === "integer")) return number(name, own, required, type);
  if (isPlain && type === "string") return text(name, own, required);
  return raw(name, own, required);
}

function isGroup(schema, type) {
  const names = Object.keys(schema.properties ?? {});
  return (type === "object" || type === undefined) && names.length > 0 && names.length <= FIELDS;
}

// Its arguments as a whole: an object also if its schema says nothing.
export function argumentsOf(schema) {
  const own = { type: "object", ...(typeof schema === "object" ? schema : {}) };
  if (Object.keys(own.properties ?? {}).length === 0 && own.additionalProperties !== true && !own.oneOf && !own.anyOf && !own.$ref) {
    return { element: make("p", { class: "soft" }, "It takes no arguments."), value: () => ({}) };
  }
  return field("arguments", own, true);
}

function labelled(name, schema, required, control, note) {
  control.id = mint("field");
  const about = [schema.description, note].filter(Boolean).map((words) => said(cut(String(words), 500), "hint"));
  if (about.length) {
    const hint = make("span", { id: mint("hint"), class: "hints" }, ...about);
    control.setAttribute("aria-describedby", hint.id);
    return make("div", { class: "field" }, label(control.id, name, required), control, hint);
  }
  return make("div", { class: "field" }, label(control.id, name, required), control);
}

function label(id, name, required) {
  return make("label", { for: id }, said(cut(name, 200)), required ? make("span", { class: "needed", title: "required" }, " *") : null);
}

// What stands in a field before anybody has written in it.
const given = (schema) => (schema.default === undefined ? undefined : typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default));

function empty(name, required) {
  if (required) throw new Error(`${oneLine(name)} is required`);
  return undefined;
}

function number(name, schema, required, type) {
  const control = make("input", { type: "number", step: type === "integer" ? 1 : "any", min: schema.minimum, max: schema.maximum, value: given(schema) });
  const value = () => {
    if (control.validity.badInput) throw new Error(`${oneLine(name)} is no number`);
    return control.value === "" ? empty(name, required) : Number(control.value);
  };
  return { element: labelled(name, schema, required, control), value };
}

function text(name, schema, required) {
  const isLong = schema.maxLength > 200 || schema.contentMediaType;
  const control = make(isLong ? "textarea" : "input", { type: isLong ? undefined : "text", spellcheck: "false", dir: "auto", maxlength: schema.maxLength, value: isLong ? undefined : given(schema) });
  if (isLong) control.value = given(schema) ?? "";
  // Nothing written: left out, or the empty text where there must be one.
  const value = () => (control.value === "" && !required ? undefined : control.value);
  return { element: labelled(name, schema, required, control), value };
}

function raw(name, schema, required) {
  const control = make("textarea", { rows: 3, spellcheck: "false", class: "code" });
  control.value = schema.default === undefined ? "" : JSON.stringify(schema.default, null, 2);
  const value = () => {
    if (control.value.trim() === "") return empty(name, required);
    try {
      return JSON.parse(control.value);
    } catch (e) {
      throw new Error(`${oneLine(name)} is not valid JSON: ${e.message}`);
    }
  };
  return { element: labelled(name, schema, required, control, "As JSON."), value };
}

function choice(name, schema, required) {
  const control = make("select", {});
  if (!required || schema.enum.length > 1) control.append(make("option", { value: "" }, required ? "Choose…" : "–"));
  schema.enum.forEach((item, at) => control.append(make("option", { value: at, selected: item === schema.default }, oneLine(typeof item === "string" ? item : JSON.stringify(item)))));
  const value = () => (control.value === "" ? empty(name, required) : schema.enum[Number(control.value)]);
  return { element: labelled(name, schema, required, control), value };
}

function legend(name, schema, required) {
  return [make("legend", {}, said(cut(name, 200)), required ? make("span", { class: "needed" }, " *") : null), schema.description ? said(cut(String(schema.description), 500), "hint") : null];
}

function group(name, schema, required, level) {
  const needed = Array.isArray(schema.required) ? schema.required : [];
  const fields = Object.entries(schema.properties).map(([key, inner]) => [key, field(key, inner, needed.includes(key), level + 1)]);
  const inner = fields.map(([, { element }]) => element);
  const element = level === 0 ? make("div", { class: "fields" }, ...inner) : make("fieldset", {}, ...legend(name, schema, required), ...inner);
  const isEmpty = () => ![...element.querySelectorAll("input, select, textarea")].some((control) => control.value !== "");
  const value = () => {
    if (!required && isEmpty()) return undefined;
    return Object.fromEntries(fields.map(([key, one]) => [key, one.value()]).filter(([, found]) => found !== undefined));
  };
  return { element, value };
}

function list(name, schema, required, level) {
  const items = [];
  const rows = make("div", { class: "items" });
  const add = () => {
    const item = field(`${name} ${items.length + 1}`, schema.items, true, level + 1);
    items.push(item);
    rows.append(item.element);
    item.element.querySelector("input, select, textarea")?.focus();
  };
  const remove = () => items.pop()?.element.remove();
  const bar = make("div", { class: "actions" }, button(`Add ${oneLine(name)}`, add), button(`Remove the last ${oneLine(name)}`, remove, { class: "quiet" }));
  const element = make("fieldset", {}, ...legend(name, schema, required), rows, bar);
  return { element, value: () => (items.length || required ? items.map((item) => item.value()) : undefined) };
}
