/** The little of Plotly that plot.js uses, and the shape of the server's answers. */

export interface Trace {
  type: string;
  name?: string;
  mode?: string;
  x?: (number | null)[];
  y?: (number | string | null)[];
  z?: (number | null)[][];
  text?: (string | string[])[];
  customdata?: unknown[];
  hoverinfo?: string;
  meta?: { per?: number; columns?: string[] };
  [setting: string]: unknown;
}

export interface Axis {
  range?: [number, number];
  [setting: string]: unknown;
}

export interface Layout {
  xaxis: Axis;
  yaxis: Axis;
  meta?: { names?: string[]; octaves?: (number | null)[] };
  [setting: string]: unknown;
}

export interface Figure {
  data: Trace[];
  layout: Layout;
}

export interface Key {
  label: string;
  colour: string;
  mark: "line" | "dash" | "dot" | "up" | "down" | "cross" | "band" | "area" | "point" | "ring";
}

export interface Chart {
  name: string;
  title: string;
  grain: string;
  summary: string;
  missing: string | null;
  legend: Key[];
  figure: Figure;
}

export interface RelayoutEvent {
  "xaxis.range[0]"?: number;
  "xaxis.range[1]"?: number;
  "xaxis.range"?: [number, number];
}

export interface ClickEvent {
  points: { pointIndex: [number, number] | number; y: unknown }[];
}

export interface PlotElement extends HTMLElement {
  on(name: "plotly_relayout", listener: (event: RelayoutEvent) => void): void;
  on(name: "plotly_doubleclick", listener: () => void): void;
  on(name: "plotly_click", listener: (event: ClickEvent) => void): void;
}

export interface PlotlyStatic {
  react(target: HTMLElement, data: Trace[], layout: Layout, config: Record<string, unknown>): Promise<PlotElement>;
  relayout(target: HTMLElement, update: Record<string, unknown>): Promise<PlotElement>;
  restyle(target: HTMLElement, update: Record<string, unknown>, traces: number[]): Promise<PlotElement>;
  purge(target: HTMLElement): void;
  toImage(target: HTMLElement, options: { format: string; width: number; height: number }): Promise<string>;
  Plots: { resize(target: HTMLElement): void };
}

declare global {
  interface Window {
    Plotly: PlotlyStatic;
  }
}
