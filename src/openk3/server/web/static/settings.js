// The settings panel, and the tools that are declared in it.

import { readSettings, writeSettings } from "./store.js";

const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

export const settings = readSettings();

// Changes one setting and keeps it.
export function change(name, value) {
  settings[name] = value;
  writeSettings(settings);
}

// Reads declared tools: {tools, error}, of which `error` is a text for the reader or null.
export function parseTools(text) {
  if (!text.trim()) return { tools: [], error: null };
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { tools: [], error: `This is not JSON: ${error.message}` };
  }
  const tools = (Array.isArray(value) ? value : [value]).map(asTool);
  const bad = tools.indexOf(null);
  return bad === -1 ? { tools, error: null } : { tools: [], error: `Tool ${bad + 1} has no function with a name.` };
}

function asTool(item) {
  const tool = item?.function ? item : { type: "function", function: item };
  return typeof tool.function?.name === "string" && tool.function.name ? tool : null;
}

// Connects the panel with the settings; `opener` is the button that opens it.
export function connectSettings(dialog, opener) {
  const { theme, openThinking, system, tools } = dialog.querySelector("form").elements;
  const checkTools = () => (dialog.querySelector("#tools-error").textContent = parseTools(tools.value).error ?? "");
  theme.value = settings.theme;
  openThinking.checked = settings.openThinking;
  system.value = settings.system;
  tools.value = settings.tools;
  checkTools();

  theme.forEach((button) => button.addEventListener("change", () => changeTheme(theme.value)));
  openThinking.addEventListener("change", () => change("openThinking", openThinking.checked));
  system.addEventListener("input", () => change("system", system.value));
  tools.addEventListener("input", () => change("tools", tools.value));
  tools.addEventListener("change", checkTools);
  dialog.querySelector("#tools-example").addEventListener("click", () => {
    tools.value = JSON.stringify(EXAMPLE, null, 2);
    change("tools", tools.value);
    checkTools();
  });
  opener.addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

function changeTheme(theme) {
  change("theme", theme);
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
