// The page: translates what the user types and shows how.

import { AttentionMaps } from "./attention_maps.js";
import { find, make, percent, setNote } from "./dom.js";
import { ask, Latest } from "./questions.js";
import { TokenLines } from "./token_lines.js";
import { Variants } from "./variants.js";

const PAUSE = 250; // milliseconds after the last key before translating
const ALTERNATIVES = 10; // of each token

function start({ name, missing, examples }) {
  document.title = `${name} \u2013 attention explorer`;
  find("model").textContent = name;
  setNote(find("missing"), missing.explore ?? "");

  let prefix = []; // ids of the target tokens that the translation must begin with
  const maps = new AttentionMaps();
  const lines = new TokenLines({
    setPrefix: (ids) => {
      prefix = ids;
      translate();
    },
    select: (place) => maps.select(place),
    hover: (place) => lines.shade(place === null ? null : maps.weightsOf(place)),
  });
  const variants = new Variants(missing, failed);
  const translations = new Latest("explore", { answered, failed });

  function translate() {
    const text = find("text").value.replace(/\s+/g, " ");
    if (!text.trim()) {
      translations.cancel();
      for (const part of [lines, maps, variants]) part.hide();
      find("result").hidden = true;
      clearError("Enter a sentence to translate.");
      return;
    }
    find("status").textContent = "Translating \u2026";
    document.body.classList.add("waiting");
    translations.ask({ text, prefix, k: ALTERNATIVES });
  }

  function answered(answer, request) {
    clearError(`The probability of this translation is ${percent(answer.log_prob)}.`);
    find("result").hidden = false;
    find("translation").textContent = answer.text;
    if (answer.steps) {
      lines.show(answer, request.prefix);
      maps.show(answer);
    }
    variants.show(request.text);
  }

  function failed(error) {
    clearError("");
    document.body.classList.add("stale"); // the page shows an earlier answer
    setNote(find("error"), error.message);
    find("error").scrollIntoView({ block: "nearest" });
  }

  function clearError(sentence) {
    document.body.classList.remove("waiting", "stale");
    find("status").textContent = sentence;
    setNote(find("error"), "");
  }

  for (const example of examples) {
    const button = make("button", { type: "button", dir: "auto" }, example);
    button.addEventListener("click", () => {
      find("text").value = example;
      prefix = [];
      translate();
    });
    find("examples").append(button);
  }
  find("examples").hidden = !examples.length;

  let pause;
  find("text").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      prefix = []; // it belongs to the previous sentence
      translate();
    }, PAUSE);
  });
  find("text").value ||= examples[0] ?? ""; // a reloaded page keeps its text
  if (find("text").value) translate();
}

ask("model").then(start, (error) => setNote(find("error"), error.message));
